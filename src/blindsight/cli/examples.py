"""What to type: examples under the help of every verb, and what `blindsight` alone says."""

from __future__ import annotations

__all__ = ["EXAMPLES", "FIRST"]

FIRST = """\
Blindsight: learn from images, and search them, without anyone seeing them.

See it first, on photographs that come with it (about a minute and a half):
  blindsight demo

Then your own photos:
  blindsight ledger grant --ledger budget.db --dataset holiday --epsilon 8
  blindsight hash photos/ --out index --ledger budget.db --dataset holiday
  blindsight search index query.jpg

In the browser:                      blindsight serve --photos photos/
All verbs, and one of them:          blindsight --help, blindsight hash --help
Completion in your shell:            blindsight --install-completion"""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("blindsight demo", "blindsight demo --out trial --no-papers"),
    "data list": ("blindsight data list", "blindsight data list --json"),
    "data get": ("blindsight data get fashion-mnist",),
    "hash": (
        "blindsight hash photos/ --out index --ledger budget.db --dataset holiday",
        "blindsight hash scans/ --out index --person dicom --most 3",
        "blindsight hash photos/ --out index --prune",
    ),
    "search": (
        "blindsight search index query.jpg",
        'blindsight search index --words "dog on a beach" -k 20',
        "blindsight search index query.jpg --rerank 200 --html hits.html",
    ),
    "index duplicates": ("blindsight index duplicates index",),
    "federate keys": (
        "blindsight federate keys parties --public public.npz --users 5 --host aggregator.example",
    ),
    "federate join": ("blindsight federate join user-1.invitation here",),
    "federate aggregator": ("blindsight federate aggregator parties/aggregator --test test.npz",),
    "federate keygen": ("blindsight federate keygen parties/keygen",),
    "federate holder": ("blindsight federate holder here",),
    "federate user": ("blindsight federate user here --data rows.npz",),
    "federate watch": ("blindsight federate watch parties/aggregator",),
    "federate simulate": (
        "blindsight federate simulate",
        "blindsight federate simulate --data rows.npz --users 8",
    ),
    "metric check": ("blindsight metric check pairs.csv",),
    "metric learn": (
        "blindsight metric learn pairs.csv --features table.csv --epsilon 1",
        "blindsight metric learn pairs.csv --images faces/ --unit record --select matching",
    ),
    "metric distance": (
        "blindsight metric distance metric.safetensors r1 r2 --features features.csv",
    ),
    "sketch": (
        "blindsight sketch digits/ digits.sketches --q Q3",
        "blindsight sketch recover digits.sketches --originals digits/ --gallery seen.svg",
    ),
    "sketch make": ("blindsight sketch digits/ digits.sketches --q Q3",),
    "sketch recover": (
        "blindsight sketch recover digits.sketches --originals digits/ --gallery seen.svg",
    ),
    "train": ("blindsight train digits.sketches --out model.safetensors",),
    "tag start": ('blindsight tag start "dog,beach,person" --out tagger.safetensors',),
    "tag train": (
        "blindsight tag train photos/ --labels labels.csv --vocabulary words.txt --epsilon 2",
    ),
    "tag apply": (
        "blindsight tag apply tagger.safetensors photos/",
        "blindsight tag apply tagger.safetensors photos/ --csv",
    ),
    "audit": (
        "blindsight audit index --vault index.vault --out out/audit",
        "blindsight audit tagger.safetensors",
        "blindsight audit --all",
    ),
    "ledger grant": ("blindsight ledger grant --ledger budget.db --dataset holiday --epsilon 8",),
    "ledger charge": (
        'blindsight ledger charge --ledger budget.db --dataset holiday --epsilon 1 --what "counts" '
        "--key counts",
    ),
    "ledger close": ("blindsight ledger close --ledger budget.db --dataset holiday",),
    "ledger show": ("blindsight ledger show --ledger budget.db",),
    "ledger entries": ("blindsight ledger entries --ledger budget.db --dataset holiday --last 5",),
    "ledger verify": ("blindsight ledger verify --ledger budget.db",),
    "ledger witness": ("blindsight ledger witness --ledger budget.db --to heads.txt",),
    "ledger key": ("blindsight ledger key --out witness.key",),
    "ledger backup": ("blindsight ledger backup --ledger budget.db --out copy.db",),
    "ledger export": ("blindsight ledger export --ledger budget.db --out entries.csv",),
    "serve": (
        "blindsight serve --photos ~/Pictures",
        "blindsight serve --host 192.168.1.5 --port 9000",
    ),
    "serve key add": ("blindsight serve key add alice --role analyst",),
    "serve key list": ("blindsight serve key list",),
    "serve key revoke": ("blindsight serve key revoke alice",),
    "licences": ("blindsight licences", "blindsight licences --json"),
}
