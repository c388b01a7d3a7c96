# shellcheck shell=bash
# Makes an OCI image layout without a container engine: one layer for each architecture, and an index of the images.

# image TARBALL ARCH:TREE...: packs an image for each architecture, with the files of TREE, into one layout.
image() {
  local tarball=$1 layout=$WORK/image entry
  shift
  mkdir -p "$layout/blobs/sha256"
  echo '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
  for entry in "$@"; do
    architecture "$layout" "${entry%%:*}" "${entry#*:}"
  done | jq -cs --argjson annotations "$(annotations)" '{
    schemaVersion: 2, mediaType: "application/vnd.oci.image.index.v1+json", manifests: ., annotations: $annotations
  }' | blob "$layout" application/vnd.oci.image.index.v1+json |
    jq -c --arg version "$VERSION" '{schemaVersion: 2, mediaType: "application/vnd.oci.image.index.v1+json",
      manifests: [. + {annotations: {"org.opencontainers.image.ref.name": $version}}]}' >"$layout/index.json"
  pack "$layout" . >"$tarball"
}

# architecture LAYOUT ARCH TREE: adds an image, and prints its descriptor with the platform.
architecture() {
  local layout=$1 arch=$2 layer config id
  pack "$3" . >"$WORK/layer.tar"
  id=sha256:$(sha256sum <"$WORK/layer.tar" | cut -d ' ' -f 1)
  layer=$(gzip --best --no-name <"$WORK/layer.tar" | blob "$layout" application/vnd.oci.image.layer.v1.tar+gzip)
  # Commands that only read files need no root. A pod that serves or installs sets its own user.
  config=$(jq -cn --arg arch "$arch" --arg id "$id" --arg created "$CREATED" --argjson labels "$(annotations)" '{
    created: $created, architecture: $arch, os: "linux",
    config: {User: "65532:65532", Entrypoint: ["/usr/bin/criswitch"], Cmd: ["--help"], Env: ["PATH=/usr/bin"],
      WorkingDir: "/", Labels: $labels},
    rootfs: {type: "layers", diff_ids: [$id]},
    history: [{created: $created, created_by: "package/build.sh"}]
  }' | blob "$layout" application/vnd.oci.image.config.v1+json)
  jq -cn --argjson config "$config" --argjson layer "$layer" --argjson annotations "$(annotations)" '{
    schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json", config: $config, layers: [$layer],
    annotations: $annotations
  }' | blob "$layout" application/vnd.oci.image.manifest.v1+json |
    jq -c --arg arch "$arch" '. + {platform: {architecture: $arch, os: "linux"}}'
}

# blob LAYOUT TYPE: adds standard input to the layout, and prints its descriptor.
blob() {
  local file digest
  # Several blobs are written at the same time.
  file=$(mktemp "$1/blobs/new-XXXXXX")
  cat >"$file"
  digest=$(sha256sum <"$file" | cut -d ' ' -f 1)
  jq -cn --arg type "$2" --arg digest "sha256:$digest" --argjson size "$(stat --format %s "$file")" \
    '{mediaType: $type, digest: $digest, size: $size}'
  mv "$file" "$1/blobs/sha256/$digest"
}

annotations() {
  jq -cn --arg version "$VERSION" --arg commit "$COMMIT" --arg url "$HOMEPAGE" --arg created "$CREATED" \
    --arg docs "$DOCUMENTATION" --arg title criswitch --arg description "$DESCRIPTION" '{
    "org.opencontainers.image.title": $title, "org.opencontainers.image.description": $description,
    "org.opencontainers.image.version": $version, "org.opencontainers.image.revision": $commit,
    "org.opencontainers.image.created": $created, "org.opencontainers.image.licenses": "Apache-2.0",
    "org.opencontainers.image.source": $url, "org.opencontainers.image.url": $url,
    "org.opencontainers.image.documentation": $docs, "org.opencontainers.image.vendor": $title
  }'
}
