# Makes the provenance of a release: an in-toto statement with a predicate of SLSA 1. The input is SHA256SUMS.
{
  _type: "https://in-toto.io/Statement/v1",
  subject: [inputs | capture("^(?<sha256>[0-9a-f]+)  (?<name>.+)$") | {name, digest: {sha256}}],
  predicateType: "https://slsa.dev/provenance/v1",
  predicate: {
    buildDefinition: {
      buildType: "\($repository)/blob/main/docs/releases.md#build",
      externalParameters: {command: $command, version: $version},
      internalParameters: {rustc: $rustc, profile: $profile, sourceDateEpoch: $epoch},
      resolvedDependencies: [{uri: "git+\($repository)", digest: {gitCommit: $commit}}]
    },
    runDetails: {builder: {id: "\($repository)/blob/main/package/build.sh"}}
  }
}
