#!/bin/bash
# Writes go.mod, go.sum and tools.go of one peer anew: pin.sh NAME MODULE VERSION PACKAGE...
# Only needed to move a peer to another version; the results are committed, builds use them read-only. Not for
# reference-*, which has a program of its own: `go get` and `go mod tidy` there.
#
# A module's own `replace` lines do not count when it is built as a dependency, so they are repeated here. Kubernetes
# points its staging modules at folders of its own tree: they become the published modules of the same release.
set -euo pipefail
name=$1 module=$2 version=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$here/$name"
cd "$here/$name"
rm -f go.mod go.sum

{
  printf '//go:build tools\n\n// Package tools names the commands that the peer is built from, so that go.sum covers them.\npackage tools\n\nimport (\n'
  printf '\t_ "%s"\n' "$@"
  printf ')\n'
} > tools.go

upstream=$(go mod download -json "$module@$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
{
  printf 'module crisp.test/peers/%s\n\ngo 1.26\n\nrequire %s %s\n' "$name" "$module" "$version"
  go mod edit -json "$upstream" | python3 -c '
import json, sys
release = sys.argv[1]
for r in json.load(sys.stdin).get("Replace") or []:
    old, new = r["Old"], r["New"]
    if new["Path"].startswith("."):
        if not old["Path"].startswith("k8s.io/"):
            continue
        new = {"Path": old["Path"], "Version": "v0" + release.removeprefix("v1")}
    print("replace", old["Path"], old.get("Version", ""), "=>", new["Path"], new["Version"])
' "$version"
} > go.mod
go mod edit -fmt
go mod tidy
