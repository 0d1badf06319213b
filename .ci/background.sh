# Functions for `run`: make targets that use what the tests leave idle. When the script ends, they end.

declare -A started=() logs=()
trap stop_all EXIT

background() { # TARGET: start to make it with the lowest priority
  logs[$1]=$(mktemp)
  set -m # a process group of its own, so that stop_all ends its children too
  nice -n 19 make "$1" > "${logs[$1]}" 2>&1 &
  set +m
  started[$1]=$!
}

finish() { # TARGET: wait for it and print its output; fail if it failed
  local status=0
  wait "${started[$1]}" || status=$?
  echo "make $1:"
  cat "${logs[$1]}"
  unset "started[$1]"
  return $status
}

stop_all() {
  local target
  for target in "${!started[@]}"; do
    kill -- "-${started[$target]}" 2>/dev/null || true
    echo "make $target, stopped:"
    cat "${logs[$target]}"
  done
  rm -f "${logs[@]}"
}
