# Makes a CycloneDX SBOM of the crates that cargo compiled for $target and linked into the program. $build is the output
# of `cargo build --message-format=json` with the profile $profile, $sums the checksums of Cargo.lock, $rustc the version
# of the compiler, and the input is the output of `cargo metadata`.
def purl: "pkg:cargo/\(.name)@\(.version)";
[$build[] | select(.reason == "compiler-artifact" and (.filenames[0] | contains("/\($target)/\($profile)/"))) | .package_id]
  as $linked
| (.packages | map({key: .id, value: .}) | from_entries) as $crates
| [$linked | unique[] | $crates[.]] as $linked
| .resolve.root as $root
| (.packages[] | select(.id == $root)) as $program
| (.resolve.nodes | map({key: .id, value: .dependencies}) | from_entries) as $needs
| {
    bomFormat: "CycloneDX",
    specVersion: "1.5",
    version: 1,
    metadata: {
      tools: {components: [{type: "application", name: "rustc", version: $rustc}]},
      component: ($program | {type: "application", "bom-ref": purl, name, version, purl: purl,
        licenses: [{expression: .license}]}),
      properties: [{name: "cargo:target", value: $target}]
    },
    components: [$linked[] | select(.id != $root) | {
      type: "library", "bom-ref": purl, name, version, purl: purl, scope: "required",
      licenses: [{expression: (.license | gsub("/"; " OR "))}],
      # The crates of this repository have no checksum in Cargo.lock.
      hashes: [select(.source) | {alg: "SHA-256", content: $sums["\(.name) \(.version)"]}],
      externalReferences: [select(.repository).repository | {type: "vcs", url: .}]
    }] | sort_by(.purl),
    dependencies: [$linked[] | {
      ref: purl,
      dependsOn: ([$needs[.id][] | $crates[.] | select(. as $it | $linked | index($it))| purl] | sort)
    }] | sort_by(.ref)
  }
