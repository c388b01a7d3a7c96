#!/bin/sh
# The OCI runtime @RUNTIME@, without the settings that need CAP_SYS_RESOURCE, which a sandboxed CI machine lacks.
bundle=
for word in "$@"; do
  [ "$previous" != --bundle ] && [ "$previous" != -b ] || bundle=$word
  previous=$word
done
case " $* " in
  *" create "*)
    file=$bundle/config.json
    jq 'del(.process.oomScoreAdj, .process.rlimits, .linux.resources.pids, .linux.resources.hugepageLimits)
      | .ociVersion = "1.0.2"' "$file" >"$file.new" && mv "$file.new" "$file" || exit
    ;;
esac
exec @RUNTIME@ "$@"
