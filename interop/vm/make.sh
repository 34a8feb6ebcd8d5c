#!/bin/sh
# Makes what the tests' virtual machine boots from: a kernel, and an initramfs of its modules,
# busybox, and the programs by which Linux speaks NVMe/TCP over TLS (nvme-cli; tlshd, which shakes
# hands for the kernel). All of it is Debian 13's, taken apart and not installed: the first
# release whose kernel has NVMe over TLS. scripts/setup.sh calls this.
#
#   interop/vm/make.sh FOLDER
set -eu

here=$(cd "$(dirname "$0")" && pwd)
libs=usr/lib/x86_64-linux-gnu
programs="usr/bin/keyctl usr/sbin/nvme usr/sbin/tlshd"

fail() {
    echo "interop/vm/make.sh: $*" >&2
    exit 1
}

rm -rf "$1"
mkdir -p "$1"
folder=$(cd "$1" && pwd) # apt takes what is relative from places of its own
work=$folder/work
root=$folder/root
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/packages"

# An apt of our own, which knows of this release alone and changes nothing of the machine's.
cat >"$work/sources.list" <<LIST
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main
LIST
apt() {
    tool=$1
    shift
    "$tool" -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" \
        -o Acquire::Languages=none -o APT::Sandbox::User="$(id -un)" "$@"
}

apt apt-get update >&2 || fail "cannot read Debian 13's lists of packages: is the network there?"
image=$(apt apt-cache depends linux-image-amd64 |
    sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
[ -n "$image" ] || fail "Debian 13 has no linux-image-amd64"
# shellcheck disable=SC2046 # a list of words
(cd "$work/packages" && apt apt-get download "$image" $(cat "$here/packages") >&2) ||
    fail "cannot get Debian 13's packages: is the network there?"
for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/system"
done

mkdir -p "$root/bin" "$root/etc" "$root/lib/modules" "$root/$libs" "$root/usr/lib64" \
    "$root/usr/bin" "$root/usr/sbin"
for place in proc sys dev tmp mnt run; do mkdir "$root/$place"; done
ln -s usr/lib64 "$root/lib64"
cp "$work"/system/boot/vmlinuz-* "$folder/vmlinuz"
while read -r module; do
    found=$(find "$work/system/usr/lib/modules" -name "$module.ko.xz")
    [ -n "$found" ] || fail "$image has no module $module"
    busybox unxz -c "$found" >"$root/lib/modules/$module.ko"
done <"$here/modules"
cp "$here/modules" "$root/lib/modules/order"
cp "$here/init" "$root/init"
chmod 755 "$root/init"
cp "$here/tlshd.conf" "$root/etc/"
cp "$(command -v busybox)" "$root/bin/busybox"

# Programs, and the libraries that they and these need.
cp "$work/system/$libs/ld-linux-x86-64.so.2" "$root/usr/lib64/"
for program in $programs; do cp "$work/system/$program" "$root/$program"; done
wanted=$(cd "$work/system" && for program in $programs; do echo "$program"; done)
while [ -n "$wanted" ]; do
    next=
    for file in $wanted; do
        for lib in $(readelf -d "$work/system/$file" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p'); do
            [ ! -e "$root/$libs/$lib" ] || continue
            cp -L "$work/system/$libs/$lib" "$root/$libs/" || fail "no package has $lib"
            next="$next $libs/$lib"
        done
    done
    wanted=$next
done

(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1 >../initramfs.gz)
rm -rf "$work" "$root"
