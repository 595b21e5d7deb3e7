#!/bin/bash
# Makes deploy/layout/functions.txt anew: which functions of target/release/crisp run on a node. build.rs says what for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$(realpath "${CARGO_TARGET_DIR:-target}/release/crisp")
list=deploy/layout/functions.txt
# A function that did not run and is no larger than this may be taken for one that did, where that saves a line.
SMALL=100
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

# Tests of a node with valgrind around crisp: one at rest, and one with all kinds of work.
cat > "$place/crisp" << END
#!/bin/bash
[ "\$1" = serve ] || exec $program "\$@"
exec valgrind --quiet --tool=callgrind --demangle=no --callgrind-out-file=$place/\$LAYOUT_OF.%p $program "\$@"
END
chmod +x "$place/crisp"
LAYOUT_OF=rest CRISP_BIN=$place/crisp cargo test --quiet --test node -- rest
LAYOUT_OF=work CRISP_BIN=$place/crisp cargo test --quiet --test node -- equal_directly records outage
for part in rest work; do
  # Who was killed has told nothing.
  find "$place" -name "$part.*" -exec sed -nE "s/^c?fn=\([0-9]+\) ([^ ']+).*/\1/p" {} + > "$place/$part"
  [ -s "$place/$part" ] || { echo "layout: nothing ran; the list is left as it is" >&2; exit 1; }
done

# The number of each crate changes with its version and the compiler's. Nearly all have eleven digits, which are
# left open with a star.
nm -S "$program" | awk -v rest="$place/rest" -v work="$place/work" '
  function bytes(hex,  sum, i) {
    for (i = 1; i <= length(hex); i++) sum = sum * 16 + index("0123456789abcdef", substr(hex, i, 1)) - 1
    return sum
  }
  BEGIN {
    while ((getline name < work) > 0) group[name] = 2
    while ((getline name < rest) > 0) group[name] = 1
    for (i = 0; i < 11; i++) number = number "[0-9A-Za-z]"
  }
  $3 ~ /^[tT]$/ {
    name = $4
    sub(/\..*/, "", name)
    gsub("Cs" number "_", "Cs*_", name)
    size[name] += bytes($2)
    if (group[$4] && (!first[name] || group[$4] < first[name])) first[name] = group[$4]
  }
  END { for (name in size) print name, size[name], first[name] ? first[name] : 3 }
' | LC_ALL=C sort > "$place/functions"

# Each function by the shortest beginning of its name that no function shares which comes later in the program.
shortest() { # GROUP
  LC_ALL=C awk -v group="$1" -v small="$SMALL" '
    function shared(a, b,  i) {
      for (i = 1; i <= length(a) && substr(a, i, 1) == substr(b, i, 1); i++);
      return i
    }
    { name[NR] = $1; is[NR] = $3; other[NR] = $3 > group && $2 > small }
    END {
      for (i = 1; i <= NR; i++) { if (other[i]) last = name[i]; else if (is[i] == group) need[i] = shared(name[i], last) }
      last = ""
      for (i = NR; i; i--) {
        if (other[i]) last = name[i]
        else if (is[i] == group && (n = shared(name[i], last)) > need[i]) need[i] = n
      }
      for (i = 1; i <= NR; i++) if (is[i] == group) print substr(name[i], 1, need[i])
    }' "$place/functions" | uniq
}
{
  echo "# Made by tests/layout.sh; build.rs says what it is for. What runs on every node:"
  shortest 1
  echo "# What runs on some:"
  shortest 2
} > "$list"
echo "layout: $(grep -vc '^#' "$list") names in $list; build again to use them"
