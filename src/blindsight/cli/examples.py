"""What to type: examples under the help of every verb, and what `blindsight` alone says."""

from __future__ import annotations

__all__ = ["EXAMPLES", "FIRST"]

FIRST = """\
Blindsight: learn from images, and search them, without anyone seeing them.

See it first, on photographs that come with it (about a minute and a half):
  blindsight demo

Then your own photos:
  blindsight budget grant --ledger budget.db --dataset holiday --epsilon 8
  blindsight protect photos/ --out release --ledger budget.db --dataset holiday
  blindsight search release query.jpg

In the browser:                  blindsight serve --photos photos/
All verbs, and one of them:      blindsight help, blindsight help protect
Completion in your shell:        blindsight --install-completion"""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("blindsight demo", "blindsight demo --out trial --no-papers"),
    "data list": ("blindsight data list", "blindsight data list --json"),
    "data get": ("blindsight data get fashion-mnist",),
    "encoder check": ("blindsight encoder check clip/",),
    "encoder export": ("blindsight encoder export lite2 lite2-onnx",),
    "watch": (
        "blindsight watch photos/ --out release --ledger budget.db --dataset holiday",
        "blindsight watch incoming/ --out release --people folder --most 3",
    ),
    "protect": (
        "blindsight protect photos/ --out release --ledger budget.db --dataset holiday",
        "blindsight protect scans/ --out release --people dicom --most 3",
        "blindsight protect photos/ --out release --about 'forest, glacier, sea'",
        "blindsight protect photos/ --out release --prune",
    ),
    "search": (
        "blindsight search release query.jpg",
        'blindsight search release --words "dog on a beach" -k 20',
        "blindsight search release query.jpg --rerank 200 --html hits.html",
    ),
    "open": (
        "blindsight open release",
        "blindsight open release --fingerprint '785e f198 b237 b052 d38f 34d7 f2d6 1dba'",
    ),
    "answer": ("blindsight answer request.json release",),
    "index show": (
        "blindsight index show release",
        "blindsight index show release p3f9a2c41b7d05e6f",
    ),
    "index duplicates": ("blindsight index duplicates release",),
    "federate join": (
        "blindsight federate join here --name Harbour",
        "blindsight federate join here --name Coast --address coast.example:9092",
    ),
    "federate keys": (
        "blindsight federate keys roster coast.request harbour.request county.request "
        "--public public.npz",
    ),
    "federate accept": ("blindsight federate accept here roster",),
    "federate run": (
        "blindsight federate run here --data photos",
        "blindsight federate run here --data rows.npz --ledger budget.db",
    ),
    "federate user": ("blindsight federate user here --data photos",),
    "federate new": ("blindsight federate new app",),
    "federate update": (
        "blindsight federate update rows.npz mine.safetensors --public public.npz --epsilon 8",
    ),
    "federate merge": (
        "blindsight federate merge model.safetensors mine.safetensors --public public.npz",
    ),
    "federate watch": ("blindsight federate watch here",),
    "federate simulate": (
        "blindsight federate simulate",
        "blindsight federate simulate --data rows.npz --users 8",
    ),
    "metric check": ("blindsight metric check pairs.csv",),
    "metric learn": (
        "blindsight metric learn pairs.csv --features table.csv --epsilon 1",
        "blindsight metric learn pairs.csv --images faces/ --unit person --person people.csv:who "
        "--select 2",
    ),
    "metric predict": ("blindsight metric predict 4000 30 --epsilon 1",),
    "metric distance": (
        "blindsight metric distance metric.safetensors a.jpg b.jpg --images faces/ "
        "--false-accept 0.05",
        "blindsight metric distance plain a.jpg --images faces/",
    ),
    "metric clusters": (
        "blindsight metric clusters metric.safetensors --images faces/ --out groups.csv",
    ),
    "sketch": (
        "blindsight sketch digits/ digits.sketches --q Q3",
        "blindsight sketch recover digits.sketches --originals digits/ --gallery seen.svg",
    ),
    "send make": (
        "blindsight send xrays/ xrays.statistics --epsilon 1 --ledger budget.db --dataset xrays",
        "blindsight send letters/ letters.statistics --encoder gradients --person people.csv:who",
    ),
    "send predict": ("blindsight send predict 5000 10 --epsilon 1",),
    "send fit": ("blindsight send fit north.statistics south.statistics --test own/",),
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
        "blindsight tag apply tagger.safetensors photos/ --out sidecars/ --format xmp",
    ),
    "audit": (
        "blindsight audit release --vault release.vault --out out/audit",
        "blindsight audit tagger.safetensors",
        "blindsight audit --all",
    ),
    "budget grant": ("blindsight budget grant --ledger budget.db --dataset holiday --epsilon 8",),
    "budget charge": (
        'blindsight budget charge --ledger budget.db --dataset holiday --epsilon 1 --what "counts" '
        "--key counts",
    ),
    "budget close": ("blindsight budget close --ledger budget.db --dataset holiday",),
    "budget show": ("blindsight budget show --ledger budget.db",),
    "budget entries": ("blindsight budget entries --ledger budget.db --dataset holiday --last 5",),
    "budget verify": ("blindsight budget verify --ledger budget.db",),
    "budget witness": ("blindsight budget witness --ledger budget.db --to heads.txt",),
    "budget key": ("blindsight budget key --out witness.key",),
    "budget backup": ("blindsight budget backup --ledger budget.db --out copy.db",),
    "budget export": ("blindsight budget export --ledger budget.db --out entries.csv",),
    "budget statement": (
        "blindsight budget statement holiday --ledger budget.db --out statement.html",
    ),
    "budget reconcile": (
        "blindsight budget reconcile --ledger budget.db --dataset holiday --vault release.vault",
    ),
    "serve": (
        "blindsight serve --photos ~/Pictures",
        "blindsight serve --host 192.168.1.5 --tls-cert cert.pem --tls-key key.pem",
    ),
    "serve key add": ("blindsight serve key add alice --role analyst",),
    "serve key list": ("blindsight serve key list",),
    "serve key revoke": ("blindsight serve key revoke alice",),
    "workbench doctor": ("blindsight workbench doctor",),
    "workbench backup": ("blindsight workbench backup workbench.tar",),
    "workbench restore": ("blindsight workbench restore workbench.tar --state ./restored",),
    "workbench migrate": ("blindsight workbench migrate",),
    "workbench people": ("blindsight workbench people",),
    "workbench grant": (
        "blindsight workbench grant alice --role auditor --dataset 0123456789ab",
        "blindsight workbench grant nurses --group --role searcher --dataset 0123456789ab",
    ),
    "workbench withdraw": ("blindsight workbench withdraw alice --dataset 0123456789ab",),
    "workbench log": (
        "blindsight workbench log --last 20",
        "blindsight workbench log --export log.json",
    ),
    "licences": ("blindsight licences", "blindsight licences --json"),
}
