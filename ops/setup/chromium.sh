#!/bin/sh
# Prints the path of a Chromium for the tests of the pages; installs Debian's where apt may do that.
# Usage: ops/setup/chromium.sh
set -eu
find_it() {
  for name in chromium chromium-browser google-chrome; do
    command -v "$name" && return 0
  done
  return 1
}
find_it && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing chromium" >&2
  {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-liberation
  } >/dev/null 2>&1 || true
  find_it && exit 0
fi
echo "there is no Chromium here: install it (Debian: apt-get install chromium)" >&2
exit 1
