# Reads the schema of the chart's values. Prints values in which every key has a wrong type or a wrong name, and for each
# key a pattern of the error.
. as $root |
def resolved: if has("$ref") then .["$ref"] as $ref | $root | getpath($ref | split("/")[1:]) else . end;

# Every key at or below a path. The classes and pools are those of chart.yaml.
def keys_at($path):
  resolved | {path: $path, schema: .},
  (.properties // {} | to_entries[] | .key as $key | .value | keys_at($path + [$key])),
  (.additionalProperties | objects | keys_at($path + [{runtimeClasses: "chart-gvisor", pools: "canary"}[$path[-1]] // "x"])),
  (.items // empty | keys_at($path + [0]));

def place: "at '\(map("/\(.)") | join(""))': ";

[keys_at([])] |
# A wrong type hides the keys below, so keys at different depths are in different values.
(map(select(.path != [])) | group_by(.path | length)[] | {
  values: (reduce .[] as $key ({}; setpath($key.path; if $key.schema.type == "boolean" then 1 else true end))),
  errors: map(.path | place)}),
([.[] | select(.schema.additionalProperties == false) | .path as $path | .schema.properties | keys[] + "s" |
  {path: ($path + [.]), error: "\($path | place).*'\(.)'"}] | {
  values: (reduce .[] as $key ({}; setpath($key.path; true))),
  errors: map(.error)})
