# Function for the install scripts. The indexes of pip (pip.conf, PIP_*) are used, since uv does not read them.

uv_install() { # ENVIRONMENT OPTIONS...: run `uv pip install`; fail without uv
  local python=$1/bin/python options=(--quiet --index-strategy unsafe-best-match) value
  "$python" -m pip install --quiet uv 2>/dev/null || return
  value=$(pip_setting index-url); [ -z "$value" ] || options+=(--default-index "$value")
  for value in $(pip_setting extra-index-url); do options+=(--index "$value"); done
  for value in $(pip_setting find-links); do options+=(--find-links "$value"); done
  value=$(pip_setting cert); [ -z "$value" ] || export SSL_CERT_FILE="$value"
  "$1/bin/uv" pip install --python "$python" "${options[@]}" "${@:2}"
}

pip_setting() { # NAME: print pip's setting NAME from its files or from PIP_NAME; print nothing if it is not set
  "$python" -m pip config list 2>/dev/null | sed -n "s/^[^=]*\.$1='\(.*\)'$/\1/p" | tail -n 1
}
