#!/bin/sh
# Pins the images of compose.yml and of the builds to the digests that their tags have now: writes
# them into .env. A tag can be moved; a digest cannot. Needs Docker and the registry. Run it again to
# take newer builds of the same tags.
set -eu
cd "$(dirname "$0")"
if [ ! -e .env ]; then
	echo "error: $PWD/.env is missing: run ./make-env.sh first" >&2
	exit 1
fi

pinned=$(mktemp .env.XXXXXX)
trap 'rm -f "$pinned"' EXIT
chmod 600 "$pinned"
grep -v '^TUNESMITH_[A-Z]*_IMAGE=' .env > "$pinned"
grep -ho '\${TUNESMITH_[A-Z]*_IMAGE:-[^}]*}' ./*.yml | sort -u | tr -d '${}' | while IFS= read -r line; do
	name=${line%%:-*}
	image=${line#*:-}
	digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image")
	case $digest in
	sha256:*) ;;
	*)
		echo "error: no digest for $image: $digest" >&2
		exit 1
		;;
	esac
	echo "$name=$image@$digest" >> "$pinned"
	echo "$image@$digest"
done
mv "$pinned" .env
trap - EXIT
