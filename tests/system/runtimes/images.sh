# shellcheck shell=bash
# The images of the suite, as OCI layouts in the cache, so that no external registry is needed.
#   pause    ten lines of C
#   busybox  Debian's static busybox, with one link per applet; tag 2 is another image, with a user

# build_images: makes the layouts and sets IMAGES, the folder that holds them.
build_images() {
  local key
  key=$(cat "$REAL/images.sh" "$REAL/images/pause.c" /usr/bin/busybox | sha256sum | cut -c1-16)
  IMAGES=$CACHE/images-$key
  [ ! -e "$IMAGES/.done" ] || return 0
  echo "making the images pause and busybox"
  rm -rf "$IMAGES"
  mkdir -p "$IMAGES" || return
  build_pause && build_busybox && touch "$IMAGES/.done"
}

build_pause() {
  local root=$IMAGES/pause.root
  mkdir -p "$root"
  gcc -static -Os -o "$root/pause" "$REAL/images/pause.c" || return
  layout pause "$root" --config.entrypoint /pause --config.user 65535:65535
}

build_busybox() {
  local root=$IMAGES/busybox.root applet
  mkdir -p "$root"/{bin,etc,root,tmp,www}
  cp /usr/bin/busybox "$root/bin/busybox"
  for applet in $(/usr/bin/busybox --list); do
    [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
  done
  echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
  echo 'root:x:0:' >"$root/etc/group"
  layout busybox "$root" --config.env PATH=/bin --config.cmd sh &&
    umoci config --image "$IMAGES/busybox:1" --tag 2 --config.user 1000:1000
}

# layout NAME ROOT CONFIG-FLAG...: packs the files of ROOT as the image $IMAGES/NAME with the tag 1.
layout() {
  local name=$1 root=$2
  shift 2
  umoci init --layout "$IMAGES/$name" &&
    umoci new --image "$IMAGES/$name:1" &&
    umoci insert --image "$IMAGES/$name:1" "$root" / &&
    umoci config --image "$IMAGES/$name:1" "$@" &&
    rm -rf "$root"
}
