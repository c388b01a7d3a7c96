#!/usr/bin/env bash
# repositories.sh RELEASE FOLDER KEY: adds the packages of the release in the folder RELEASE to an apt repository and an
# rpm repository in FOLDER, and signs both with the OpenPGP key KEY of the user. The packages of earlier releases stay.
#
#   FOLDER/apt             suite stable, component main
#   FOLDER/rpm             one folder for all architectures
#   FOLDER/criswitch.asc   the public key, for Signed-By and gpgkey
#
# Needs apt-utils, createrepo-c, gpg and rpm.
set -euo pipefail

ARCHITECTURES=(amd64 arm64)
PROGRAMS=(apt-ftparchive createrepo_c gpg gzip rpmsign)

main() {
  local key=$3 program
  for program in "${PROGRAMS[@]}"; do
    command -v "$program" >/dev/null || fail "missing program: $program"
  done
  gpg --batch --list-secret-keys "$key" >/dev/null 2>&1 || fail "gpg has no secret key $key"
  mkdir -p "$2/apt/pool" "$2/rpm"
  cp "$1"/*.deb "$2/apt/pool"
  cp "$1"/*.rpm "$2/rpm"
  cd "$2"
  gpg --batch --yes --armor --output criswitch.asc --export "$key"
  (cd apt && apt_repository "$key")
  (cd rpm && rpm_repository "$key" "$1"/*.rpm)
}

fail() {
  echo "repositories.sh: $1" >&2
  exit 1
}

# Clients fetch an index by its hash, so that an update during a publication finds the index that InRelease names.
apt_repository() {
  local dist=dists/stable arch
  for arch in "${ARCHITECTURES[@]}"; do
    mkdir -p "$dist/main/binary-$arch"
    apt-ftparchive --arch "$arch" packages pool >"$dist/main/binary-$arch/Packages"
    gzip --best --no-name --keep --force "$dist/main/binary-$arch/Packages"
  done
  rm -f "$dist/Release"
  apt-ftparchive -o APT::FTPArchive::DoByHash=true -o APT::FTPArchive::Release::Origin=criswitch \
    -o APT::FTPArchive::Release::Suite=stable -o APT::FTPArchive::Release::Codename=stable \
    -o APT::FTPArchive::Release::Components=main -o "APT::FTPArchive::Release::Architectures=${ARCHITECTURES[*]}" \
    -o APT::FTPArchive::Release::Acquire-By-Hash=yes release "$dist" >Release.new
  gpg --batch --yes --local-user "$1" --clearsign --output InRelease.new Release.new
  mv Release.new "$dist/Release"
  mv InRelease.new "$dist/InRelease"
}

# rpm_repository KEY PACKAGE...: signs the added packages, and makes the index.
rpm_repository() {
  local key=$1 package
  shift
  for package in "$@"; do
    rpmsign --define "_gpg_name $key" --define "__gpg $(command -v gpg)" --addsign "${package##*/}" >/dev/null
  done
  createrepo_c --quiet .
  gpg --batch --yes --local-user "$key" --armor --detach-sign --output repodata/repomd.xml.asc repodata/repomd.xml
}

[ $# = 3 ] || { echo "usage: repositories.sh RELEASE FOLDER KEY" >&2; exit 64; }
main "$(realpath "$1")" "$(realpath --canonicalize-missing "$2")" "$3"
