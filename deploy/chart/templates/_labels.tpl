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
