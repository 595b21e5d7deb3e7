#!/bin/bash
# Builds small busybox images and pushes them under the names that critest, kubelets and tests ask for: images.sh REGISTRY
set -euo pipefail
registry=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

umoci init --layout img
umoci new --image img:base
umoci unpack --image img:base base
root=base/rootfs
mkdir -p $root/{bin,tmp,etc,proc,sys,dev,var/www,root,home,usr/sbin}
chmod 1777 $root/tmp
cp "$(command -v busybox)" $root/bin/busybox
busybox --list | grep -vx busybox | while read -r applet; do ln -s busybox "$root/bin/$applet"; done
# critest's containers mostly run top. One that heeds SIGTERM spares each of them its grace period.
rm $root/bin/top
cat > $root/bin/top <<'TOP'
#!/bin/sh
trap 'exit 0' TERM INT
tail -f /dev/null &
wait
TOP
chmod +x $root/bin/top
# Two programs that critest runs and Debian's busybox lacks.
cat > $root/usr/sbin/pgrep <<'PGREP'
#!/bin/sh
for process in /proc/[0-9]*; do
  # A process that has ended and only waits for its parent has no command line.
  grep -q . "$process/cmdline" 2> /dev/null || continue
  if [ "$(cat "$process/comm" 2> /dev/null)" = "$1" ]; then echo "${process#/proc/}"; found=yes; fi
done
[ -n "$found" ]
PGREP
printf '#!/bin/sh\ncat /proc/sysvipc/shm\n' > $root/usr/sbin/ipcs
chmod +x $root/usr/sbin/{pgrep,ipcs}
cat > $root/etc/passwd <<USERS
root:x:0:0:root:/root:/bin/sh
www-data:x:33:33:www-data:/var/www:/bin/sh
default-user:x:1000:1000::/home:/bin/sh
nobody:x:65534:65534:nobody:/home:/bin/sh
USERS
cat > $root/etc/group <<GROUPS
root:x:0:
www-data:x:33:
default-user:x:1000:
group-defined-in-image:x:50000:default-user
nobody:x:65534:
GROUPS
umoci repack --image img:base base
umoci config --image img:base --config.cmd sh --config.env PATH=/bin:/usr/sbin

push() { skopeo copy -q --dest-tls-verify=false "oci:img:$1" "docker://$registry/$2"; }
serial=0
variant() { # NAME OPTIONS...: the base image with another configuration, and so with another ID
  serial=$((serial + 1))
  umoci config --image img:base --tag "v$serial" "${@:2}"
  push "v$serial" "$1"
}

for name in busybox:1.35 busybox:also library/busybox:1.35 library/busybox:also e2e-test-images/busybox:1.29-2 e2e-test-images/busybox:1.29-4; do
  push base $name
done
# The sandbox has to end on SIGTERM, or every pod takes its whole grace period to stop. No sleep in it: critest looks
# for one, and pods share process IDs unless told otherwise.
for tag in 3.9 3.10 3.10.1; do
  variant pause:$tag --config.cmd sh --config.cmd -c --config.cmd "trap 'exit 0' TERM INT; tail -f /dev/null & wait"
done

cri=k8s-staging-cri-tools
for n in 1 2 3; do variant $cri/test-image-$n:latest --config.label n=$n; done
variant $cri/test-image-tags:1 --config.label tags=1
# Three tags of one image.
for tag in 2 3; do push v$serial $cri/test-image-tags:$tag; done
variant $cri/test-image-latest:latest --config.label l=1
variant $cri/test-image-tag:test --config.label t=1
variant $cri/test-image-tag:all --config.label a=1
variant $cri/test-image-user-uid:latest --config.user 1002
variant $cri/test-image-user-username:latest --config.user www-data
variant $cri/test-image-user-uid-group:latest --config.user 1003:22
variant $cri/test-image-user-username-group:latest --config.user www-data:100
variant $cri/test-image-predefined-group:latest --config.user 1000

# Web servers: busybox httpd, on the ports that the nginx images serve, below a process that looks like nginx.
umoci unpack --image img:base web
mkdir -p web/rootfs/www web/rootfs/var/run
echo '<h1>Welcome to nginx!</h1>' > web/rootfs/www/index.html
cat > web/rootfs/usr/sbin/nginx <<'NGINX'
#!/bin/sh
echo $$ > /var/run/nginx.pid
echo "httpd on port ${PORT:-80}"
trap 'kill $server; exit 0' TERM QUIT INT
httpd -f -p "${PORT:-80}" -h /www &
server=$!
wait $server
NGINX
chmod +x web/rootfs/usr/sbin/nginx
umoci repack --image img:web web
serve() { # NAME PORT
  umoci config --image img:web --tag "port$2" --config.env PATH=/bin:/usr/sbin --config.env PORT="$2" \
    --config.cmd nginx --config.cmd 'master process'
  push "port$2" "$1"
}
serve e2e-test-images/nginx:1.14-2 80
serve e2e-test-images/httpd:2.4.39-4 80
serve $cri/hostnet-nginx-amd64:latest 12003
