{{- /* The labels of every object. */ -}}
{{- define "criswitch.labels" -}}
app.kubernetes.io/name: criswitch
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: criswitch
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* The labels that select the pods of a pool. */ -}}
{{- define "criswitch.pool" -}}
criswitch.io/release: {{ (index . 0).Release.Name | quote }}
criswitch.io/pool: {{ index . 1 | quote }}
{{- end }}

{{- /* The image of a pool. The digest of the chart's image is not that of another version. */ -}}
{{- define "criswitch.image" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- $pool := index . 2 }}
{{- $digest := $pool.digest }}
{{- if and $root.Values.image.digest (not $digest) }}
{{- if $pool.version }}
{{- fail (printf "pools.%s has a version, and image.digest is that of another version; set its digest" $name) }}
{{- end }}
{{- $digest = $root.Values.image.digest }}
{{- end }}
{{- printf "%s:%s" $root.Values.image.repository ($pool.version | default $root.Chart.AppVersion) }}
{{- with $digest }}{{ printf "@%s" . }}{{ end }}
{{- end }}

{{- /* The affinity of a pool that does not say which nodes it requires: no node of the control plane. */ -}}
{{- define "criswitch.workers" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - key: node-role.kubernetes.io/control-plane
            operator: DoesNotExist
{{- end }}

{{- /* The nodes and the identity of a pool's pods. */ -}}
{{- define "criswitch.placement" -}}
{{- $root := index . 0 }}
{{- $pool := index . 1 -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.serviceAccount }}
{{- if or .create .name }}
serviceAccountName: {{ .name | default $root.Release.Name | quote }}
{{- end }}
{{- end }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
nodeSelector:
  {{- merge (dict "kubernetes.io/os" "linux") ($pool.nodeSelector | default dict) | toYaml | nindent 2 }}
{{- $affinity := deepCopy ($pool.affinity | default dict) }}
{{- if not $pool.nodeSelector }}
{{- $affinity = merge $affinity (include "criswitch.workers" . | fromYaml) }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  {{- hasKey $pool "tolerations" | ternary $pool.tolerations (list (dict "operator" "Exists")) | toYaml | nindent 2 }}
{{- end }}

{{- /* The pods need no privileges: the user 0 may connect to the sockets of systemd and of criswitch. */ -}}
{{- define "criswitch.securityContext" -}}
runAsUser: 0
runAsGroup: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}
