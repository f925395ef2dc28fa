"""What every ledger keeps, on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import tempfile
import threading
from pathlib import Path

import pytest

import warm
from blindsight.core.errors import (
    BudgetExceeded,
    InvalidParameter,
    LedgerError,
    LedgerTampered,
    NotProven,
    UnitMismatch,
)
from blindsight.privacy.accounting import Planned
from blindsight.privacy.guarantee import Cost, Guarantee
from blindsight.privacy.ledger import (
    Amount,
    Head,
    Ledger,
    backup,
    check_json,
    datasets,
    to_csv,
    to_json,
)
from blindsight.privacy.ledger.chain import FIELDS
from blindsight.privacy.ledger.transaction import ENTRIES, HEADS
from blindsight.privacy.mechanisms import KaryResponse

CROWD = Path(__file__).with_name("crowd.py")
TENTH = Cost(epsilon=0.1, unit="record")
KEYS = "blindsight_ledger3_keys"
numbers = itertools.count(1)


def crowd(*arguments: object) -> dict[str, int]:
    done = warm.run([CROWD, *map(str, arguments)])
    assert done.returncode == 0 and not done.stderr, done.stderr[-2000:]
    return json.loads(done.stdout)


class LedgerContract:
    """Subclasses give `where`; each test gets a data set of its own."""

    # Two cores run two of them at a time; more processes add waiting, which
    # `benchmarks.privacy.crowd` measures with 64.
    processes, times, kills = 16, 24, 24

    @pytest.fixture
    def ledger(self, where):
        with Ledger(where, dataset=f"set {next(numbers)}") as ledger:
            yield ledger

    @pytest.fixture
    def granted(self, ledger):
        ledger.grant(Cost(epsilon=1, delta=1e-6, unit="record"))
        return ledger

    def test_a_charge_comes_off_the_budget(self, granted):
        entry = granted.charge(Cost(epsilon=0.25, delta=1e-7, unit="record"), what="codes")
        balance = granted.balance("record")
        assert entry.what == "codes" and entry.sequence == 2
        assert balance.spent == entry.amount == Amount(250_000, 10**11)
        assert (balance.budget.epsilon, balance.remaining.epsilon, balance.remaining.delta) == (
            1.0,
            0.75,
            9e-7,
        )

    def test_ten_tenths_are_exactly_one(self, granted):
        for _ in range(10):
            granted.charge(TENTH, what="tenth")
        assert granted.balance("record").remaining.micro_epsilon == 0
        with pytest.raises(BudgetExceeded, match="has ε = 0"):
            granted.charge(Cost(epsilon=1e-9, unit="record"), what="one more")

    def test_a_refused_charge_leaves_no_trace(self, granted):
        head, entries = granted.head(), list(granted.entries())
        for cost, error in [
            (Cost(epsilon=1.5, unit="record"), BudgetExceeded),
            (Cost(epsilon=0.5, delta=1e-3, unit="record"), BudgetExceeded),
            (Cost(epsilon=0.1, unit="pair"), UnitMismatch),
            (Cost(epsilon=float("inf"), unit="record"), NotProven),
        ]:
            with pytest.raises(error):
                granted.charge(cost, what="too much")
        assert (granted.head(), list(granted.entries())) == (head, entries)
        assert granted.charge(TENTH, what="fits").sequence == head.sequence + 1

    def test_without_a_grant_there_is_no_budget(self, ledger, where):
        with pytest.raises(BudgetExceeded, match="no budget yet"):
            ledger.charge(TENTH, what="codes")
        assert ledger.dataset not in datasets(where)
        assert ledger.balance("record").remaining == Amount(0, 0)

    def test_a_pair_cost_is_taught_to_become_a_record_cost(self, granted):
        with pytest.raises(
            UnitMismatch, match=r"the most pairs that any one record is in.*cost\.per\('record'"
        ):
            granted.charge(Cost(epsilon=0.1, unit="pair"), what="metric")
        granted.charge(Cost(epsilon=0.1, unit="pair").per("record", times=4), what="metric")
        assert granted.balance("record").spent.epsilon == 0.4

    def test_neighbour_relations_have_budgets_of_their_own(self, granted):
        other = Cost(epsilon=0.5, unit="record", neighbours="add or remove one")
        with pytest.raises(UnitMismatch, match="costs twice"):
            granted.charge(other, what="training")
        granted.grant(other)
        granted.charge(other, what="training")
        assert granted.balance("record", "add or remove one").remaining == Amount(0, 0)
        assert granted.balance("record", "replace one").spent == Amount(1_000_000, 0), (
            "one out and one in"
        )
        with pytest.raises(InvalidParameter, match="choose one"):
            granted.balance("record")
        granted.verify()

    def test_data_sets_do_not_share_a_budget(self, granted, where):
        with Ledger(where, dataset=granted.dataset + " b") as other:
            other.grant(Cost(epsilon=2, unit="record"))
            other.charge(Cost(epsilon=2, unit="record"), what="all")
            assert granted.balance("record").spent == Amount(0, 0)
            assert {granted.dataset, other.dataset} <= set(datasets(where))

    def test_granting_the_same_total_twice_grants_it_once(self, granted):
        head = granted.head()
        granted.grant(Cost(epsilon=1, delta=1e-6, unit="record"))
        assert granted.head() == head

    def test_a_budget_is_raised_by_a_chained_grant_only(self, granted):
        granted.charge(Cost(epsilon=1, unit="record"), what="all")
        entry = granted.grant(Cost(epsilon=3, unit="record"), what="ethics board, March")
        assert entry.kind == "grant" and entry.what == "ethics board, March"
        assert granted.balance("record").remaining.epsilon == 2
        granted.verify()

    def test_a_budget_below_what_is_spent_is_refused(self, granted):
        granted.charge(Cost(epsilon=0.5, unit="record"), what="codes")
        head = granted.head()
        with pytest.raises(InvalidParameter, match="less than what is spent"):
            granted.grant(Cost(epsilon=0.4, unit="record"))
        assert granted.head() == head

    def test_a_closed_budget_stays_closed(self, granted):
        granted.charge(TENTH, what="codes")
        assert granted.close_budget("record", what="study ended").kind == "close"
        with pytest.raises(BudgetExceeded, match="closed"):
            granted.charge(Cost(epsilon=0, unit="record"), what="nothing")
        with pytest.raises(LedgerError, match="stays closed"):
            granted.grant(Cost(epsilon=9, unit="record"))
        assert granted.balance("record").closed and granted.balance("record").remaining == Amount(
            0, 0
        )
        granted.verify()

    def test_entries_come_back_in_order_and_prove_themselves(self, granted):
        for i in range(5):
            granted.charge(TENTH, what=f"δ-release {i}")
        entries = list(granted.entries())
        assert [entry.sequence for entry in entries] == [1, 2, 3, 4, 5, 6]
        assert granted.verify() == entries[-1].head == granted.head()
        assert list(granted.entries(after=4)) == entries[4:]

    @pytest.mark.parametrize("field", FIELDS[2:])
    def test_a_change_behind_its_back_is_found(self, granted, field):
        entry = granted.charge(
            TENTH,
            what="codes",
            key="release 1",
            purpose="a test",
            vault=granted.dataset,
            generation=1,
        )
        granted.charge(TENTH, what="more codes")
        old = getattr(entry, field)
        new = old + 1 if isinstance(old, int) else old[:-1] + chr(ord(old[-1]) ^ 1)
        with granted._store.write(granted.dataset) as transaction:
            chosen = (ENTRIES.c.dataset == granted.dataset) & (ENTRIES.c.sequence == entry.sequence)
            transaction.connection.execute(ENTRIES.update().where(chosen).values({field: new}))
        with pytest.raises(LedgerTampered):
            granted.verify()

    def test_a_cut_off_tail_is_found(self, granted):
        granted.charge(TENTH, what="codes")
        with granted._store.write(granted.dataset) as transaction:
            chosen = (ENTRIES.c.dataset == granted.dataset) & (ENTRIES.c.sequence == 2)
            transaction.connection.execute(ENTRIES.delete().where(chosen))
        with pytest.raises(LedgerTampered, match="cut off"):
            granted.verify()
        with pytest.raises(LedgerTampered, match="nothing was written"):
            granted.charge(TENTH, what="again")

    def test_a_head_kept_elsewhere_proves_history(self, granted):
        known = granted.head()
        granted.charge(TENTH, what="later")
        assert granted.verify(known=known) == granted.head()
        with pytest.raises(LedgerTampered, match="rewritten"):
            granted.verify(known=Head(known.sequence, "f" * 64))

    def test_an_export_proves_itself_and_shows_changes(self, granted):
        granted.charge(TENTH, what="=SUM(A1)")
        text = to_json([granted])
        assert check_json(text) == {granted.dataset: granted.head()}
        with pytest.raises(LedgerTampered):
            check_json(text.replace('"micro_epsilon": 100000', '"micro_epsilon": 100001'))
        table = to_csv(granted.entries())
        assert table.count("\n") == 3 and "'=SUM(A1)" in table and "0.1,0.0," in table

    def test_what_is_charged_must_be_a_cost_with_a_purpose(self, granted):
        flip = Planned(what="bit", mechanism=KaryResponse(epsilon=0.1, k=2, unit="record"))
        guarantee = Guarantee(releases=(flip,), model="local")
        with pytest.raises(InvalidParameter, match=r"Pass its \.cost"):
            granted.charge(guarantee, what="codes")
        for what in ("", "  ", "two\nlines", "nul\0", "\ud800", "x" * 1001, None, 3):
            with pytest.raises(InvalidParameter, match="what must be"):
                granted.charge(TENTH, what=what)
        granted.charge(guarantee.cost, what="codes")

    def test_a_ledger_cannot_be_copied_or_pickled(self, granted):
        for copying in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(LedgerError, match="cannot be copied"):
                copying(granted)

    def test_threads_share_one_budget(self, granted):
        done = []

        def work():
            for _ in range(4):
                try:
                    done.append(granted.charge(TENTH, what="thread").sequence)
                except BudgetExceeded:
                    done.append(0)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(done) == [0] * 22 + list(range(2, 12))
        granted.verify()

    def test_a_forked_child_and_its_parent_both_go_on(self, granted):
        granted.charge(TENTH, what="before")
        pid = os.fork()
        if pid == 0:
            try:
                granted.charge(TENTH, what="child")
                os._exit(0)
            except BaseException:
                os._exit(1)
        granted.charge(TENTH, what="parent")
        assert os.waitpid(pid, 0)[1] == 0
        assert sorted(entry.what for entry in granted.entries()) == [
            "before",
            "budget",
            "child",
            "parent",
        ]
        granted.verify()

    def test_a_reader_does_not_stop_a_writer(self, granted):
        with granted._store.read() as snapshot:
            before = snapshot.head(granted.dataset)
            granted.charge(TENTH, what="meanwhile")
            assert snapshot.head(granted.dataset) == before
        assert granted.head().sequence == before.sequence + 1

    @pytest.fixture
    def crowded(self, where):
        return where

    def test_many_processes_spend_an_exact_budget_exactly(self, crowded):
        ledger = Ledger(crowded, dataset=f"set {next(numbers)}")
        attempts = self.processes * self.times
        affordable = attempts * 15 // 16
        ledger.grant(Cost(epsilon=affordable / 10, delta=1e-4, unit="record"))
        ledger.close()
        counts = crowd("charge", crowded, ledger.dataset, self.processes, self.times)
        assert counts == {"failed": 0, "charged": affordable, "refused": attempts - affordable}
        balance = ledger.balance("record")
        assert balance.spent.micro_epsilon == balance.budget.micro_epsilon == affordable * 100_000
        assert balance.spent.atto_delta == affordable * 10**9
        assert ledger.verify().sequence == affordable + 1
        ledger.close()

    def test_many_processes_with_repeated_keys_charge_each_key_once(self, crowded):
        size = (str(self.processes), str(self.times))
        command = ["-m", "benchmarks.privacy.crowd", *size, "--ledger", str(crowded)]
        done = warm.run(command, cwd=Path(__file__).parents[3])
        assert done.returncode == 0 and not done.stderr, done.stderr[-2000:]
        found = json.loads(done.stdout)
        assert (found["failed"], found["doubled"], found["exact"]) == (0, 0, True)
        assert found["keys"] > self.processes * self.times // 4

    def test_one_release_is_posted_to_every_account_it_is_stated_for(self, granted):
        granted.grant(Cost(epsilon=8, unit="pixel"))
        granted.grant(Cost(epsilon=8, unit="query"))
        costs = (
            Cost(epsilon=0.25, unit="pixel"),
            Cost(epsilon=0.75, unit="record"),
            Cost(epsilon=3, unit="user"),
        )
        entry = granted.charge(costs, what="flipped bits")
        assert (entry.unit, entry.amount.epsilon) == ("pixel", 0.25)
        spent = {balance.unit: balance.spent.epsilon for balance in granted.balances()}
        assert spent == {"pixel": 0.25, "record": 0.75, "query": 0.0}
        granted.verify()

    def test_what_bounds_a_person_or_a_record_is_posted_to_the_smaller_units_too(self, granted):
        for unit in ("pixel", "bit", "person", "pair"):
            granted.grant(Cost(epsilon=8, unit=unit))
        granted.charge(
            (Cost(epsilon=0.25, unit="record"), Cost(epsilon=0.75, unit="person")), what="codes"
        )
        spent = {balance.unit: balance.spent.epsilon for balance in granted.balances()}
        assert spent == {"pixel": 0.25, "bit": 0.25, "record": 0.25, "person": 0.75, "pair": 0.0}
        granted.charge(Cost(epsilon=0.5, unit="person"), what="a person's all")
        assert granted.balance("record").spent.epsilon == 0.75
        with pytest.raises(BudgetExceeded, match=r"needs ε = 2 per record"):
            granted.charge(Cost(epsilon=2, unit="person"), what="more than a record has")
        granted.verify()

    def test_an_account_in_a_larger_unit_is_never_passed_over(self, granted):
        granted.grant(Cost(epsilon=8, unit="person"))
        granted.grant(Cost(epsilon=8, unit="query"))
        head = granted.head()
        for cost in (TENTH, Cost(epsilon=0.1, unit="record", neighbours="add or remove one")):
            with pytest.raises(UnitMismatch, match="most_records_of_a_person"):
                granted.charge(
                    (TENTH, cost) if cost is not TENTH else cost, what="codes of whoever"
                )
        assert granted.head() == head
        granted.charge(Cost(epsilon=0, unit="record"), what="public knowledge only")
        granted.charge(Cost(epsilon=1, unit="query"), what="an answer about an asked image")
        assert granted.balance("person").spent == granted.balance("record").spent == Amount(0, 0)

    def test_an_account_that_was_granted_later_is_charged_when_the_release_goes_on(self, granted):
        costs = (TENTH, Cost(epsilon=0.3, unit="person"))
        first = granted.charge(costs, what="codes", key="index 1")
        granted.grant(Cost(epsilon=0.2, unit="person"))
        with pytest.raises(BudgetExceeded, match=r"0.3 per person"):
            granted.charge(costs, what="codes", key="index 1")
        granted.grant(Cost(epsilon=1, unit="person"))
        for _ in range(2):
            assert granted.charge(costs, what="codes", key="index 1") == first
        assert (
            granted.balance("record").spent.epsilon,
            granted.balance("person").spent.epsilon,
        ) == (0.1, 0.3)
        granted.verify()

    def test_a_release_that_overflows_one_account_is_charged_to_none(self, granted):
        granted.grant(Cost(epsilon=8, unit="pixel"))
        head = granted.head()
        costs = (
            Cost(epsilon=8, unit="pixel"),
            Cost(epsilon=8, unit="pixel").per("record", times=784),
        )
        with pytest.raises(BudgetExceeded, match=r"6,272 per record"):
            granted.charge(costs, what="flipped bits")
        with pytest.raises(InvalidParameter, match="same one"):
            granted.charge([TENTH, TENTH], what="twice")
        assert granted.head() == head

    def test_a_key_is_charged_once_and_stands_for_its_costs(self, granted, where):
        granted.grant(Cost(epsilon=8, unit="pixel"))
        costs = (TENTH, Cost(epsilon=2, unit="pixel"))
        entry = granted.charge(costs, what="codes", key="index 1")
        assert granted.charge(costs, what="codes, after a crash", key="index 1") == entry
        with Ledger(where, dataset=granted.dataset) as elsewhere:
            assert elsewhere.charge(costs, what="on another host", key="index 1") == entry
        for other in ((Cost(epsilon=0.2, unit="record"), costs[1]), TENTH):
            with pytest.raises(LedgerError, match="other costs"):
                granted.charge(other, what="codes", key="index 1")
        assert granted.charge(costs, what="more codes", key="index 2").sequence > entry.sequence
        assert granted.balance("record").spent.epsilon == 0.2 and granted.verify().sequence == 6
        with Ledger(where, dataset=granted.dataset + " b") as other_set:
            other_set.grant(TENTH)
            other_set.charge(TENTH, what="keys are the data set's own", key="index 1")

    def test_a_key_that_was_paid_is_paid_even_when_nothing_is_left(self, granted):
        everything = Cost(epsilon=1, unit="record")
        entry = granted.charge(everything, what="codes", key="index 1")
        assert granted.charge(everything, what="codes", key="index 1") == entry
        granted.close_budget("record")
        assert granted.charge(everything, what="codes", key="index 1") == entry

    def test_processes_that_charge_one_key_at_once_charge_it_once(self, granted, where):
        barrier = threading.Barrier(8)
        found = []

        def workbench():
            with Ledger(where, dataset=granted.dataset) as own:
                barrier.wait()
                found.append(
                    own.charge(
                        Cost(epsilon=1, unit="record"), what="first search", key="first search"
                    ).hash
                )

        threads = [threading.Thread(target=workbench) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8 and len(set(found)) == 1

    def test_charges_of_one_actor_at_once_never_exceed_the_limit(self, granted, where):
        barrier, outcomes = threading.Barrier(4), []

        def site(number):
            with Ledger(where, dataset=granted.dataset, actor_limit=lambda _: 0.5) as own:
                barrier.wait()
                try:
                    own.charge(Cost(epsilon=0.2, unit="record"), what="codes", actor="jonas")
                    outcomes.append("charged")
                except BudgetExceeded as refused:
                    outcomes.append(str(refused))

        threads = [threading.Thread(target=site, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refusals = [words for words in outcomes if words != "charged"]
        assert len(outcomes) == 4 and len(refusals) == 2
        assert granted.charged_by("jonas") == {("record", "replace one"): 0.4}
        assert granted.balance("record").spent.epsilon == 0.4
        for part in ("needs ε = 0.2", "'jonas' may spend ε = 0.5", "has spent ε = 0.4", "nothing"):
            assert all(part in words for words in refusals)

    def test_a_limit_is_asked_inside_the_transaction_that_charges(self, granted, where):
        """The second charge waits for the first, whose limit is being looked up, and counts it."""
        looking, second_ended, outcomes = threading.Event(), threading.Event(), []

        def slow(actor):
            looking.set()
            assert not second_ended.wait(0.3), "the second charge did not wait"
            return 0.15

        def second():
            with Ledger(where, dataset=granted.dataset, actor_limit=lambda _: 0.15) as own:
                try:
                    own.charge(TENTH, what="codes", actor="jonas")
                    outcomes.append("charged")
                except BudgetExceeded:
                    outcomes.append("refused")
            second_ended.set()

        with Ledger(where, dataset=granted.dataset, actor_limit=slow) as first:
            thread = threading.Thread(target=lambda: (looking.wait(60), second()))
            thread.start()
            first.charge(TENTH, what="codes", actor="jonas")
            thread.join()
        assert outcomes == ["refused"]
        assert granted.charged_by("jonas") == {("record", "replace one"): 0.1}

    def test_a_limit_counts_each_actor_and_each_account_alone(self, granted, where):
        limits = {"jonas": 0.15, "aiko": 0.0}
        granted.grant(Cost(epsilon=1, unit="person"))
        both = (TENTH, Cost(epsilon=0.2, unit="person"))
        with Ledger(where, dataset=granted.dataset, actor_limit=limits.get) as own:
            own.charge(both, what="codes", actor="ines", key="index 1")
            for actor, costs in (("jonas", both), ("aiko", both)):
                with pytest.raises(BudgetExceeded, match=f"{actor}' may spend"):
                    own.charge(costs, what="codes", actor=actor)
                with pytest.raises(BudgetExceeded, match=f"{actor}' may spend"):
                    own.check(costs, actor=actor)
            assert own.head().sequence == 4, "a refused charge is in none of the accounts"
            own.charge(both, what="codes", actor="jonas", key="index 1")
            assert own.head().sequence == 4, "what was paid before is not charged again"
            with own.sibling(granted.dataset) as same, pytest.raises(BudgetExceeded):
                same.charge(both, what="codes", actor="jonas")
            own.charge(both, what="made before", actor="jonas", limited=False)
            assert own.charged_by("jonas")["person", "replace one"] == 0.2

    @pytest.fixture
    def unharmed(self, where):
        """A database in which no other test has broken a chain."""
        return where

    def test_a_backup_holds_what_the_ledger_holds(self, unharmed, tmp_path):
        with Ledger(unharmed, dataset="ward-7") as ledger:
            ledger.grant(Cost(epsilon=1, unit="record"))
            ledger.charge(TENTH, what="codes", key="index 1")
            assert backup(unharmed, tmp_path / "copy.db") == {"ward-7": ledger.head()}
            assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
            assert [path.name for path in tmp_path.glob("*copy.db*")] == ["copy.db"]
            with Ledger(
                tmp_path / "copy.db", dataset="ward-7", create=False, readonly=True
            ) as copied:
                assert list(copied.entries()) == list(ledger.entries())
        with pytest.raises(InvalidParameter, match="exists already"):
            backup(unharmed, tmp_path / "copy.db")

    def test_a_ledger_opened_to_be_read_takes_no_charge(self, granted, where):
        with Ledger(where, dataset=granted.dataset, readonly=True) as reader:
            assert reader.verify() == granted.head()
            with pytest.raises(LedgerError, match="read only"):
                reader.charge(TENTH, what="codes")

    def test_a_budget_in_zcdp_adds_rho(self, ledger):
        total = Cost(epsilon=4, delta=1e-6, unit="record")
        ledger.grant(total, composition="zcdp")
        one = Cost(epsilon=0.05, unit="record")  # pure: rho = 0.00125
        charged = []
        with pytest.raises(BudgetExceeded, match=r"ρ = 0\.00125"):
            while True:
                charged.append(ledger.charge(one, what="laplace"))
        assert len(charged) > 2 * 80, "basic composition would have stopped at 80"
        balance = ledger.balance("record")
        assert (
            balance.composition == "zcdp"
            and 3.9 < balance.spent.epsilon <= 4
            and balance.spent.delta == 1e-6
        )
        assert "zCDP" in str(balance)
        ledger.verify()
        with pytest.raises(NotProven, match="rho"):
            ledger.charge(Cost(epsilon=0.1, delta=1e-9, unit="record"), what="no rho")
        with pytest.raises(InvalidParameter, match="cannot be changed"):
            ledger.grant(total)
        with pytest.raises(InvalidParameter, match="needs a delta"):
            ledger.grant(Cost(epsilon=4, unit="pair"), composition="zcdp")

    def test_whatever_is_killed_every_release_is_accounted_for(self, ledger, where, tmp_path):
        ledger.grant(Cost(epsilon=10**6, delta=0.1, unit="record"))
        ledger.close()
        released = tmp_path / "released"
        assert crowd("kill", where, ledger.dataset, self.kills, released) == {"killed": self.kills}
        ledger.verify()
        charged = {entry.hash for entry in ledger.entries() if entry.kind == "charge"}
        lines = released.read_text().split("\n")[:-1]
        assert len(lines) >= self.kills * 3 // 4 and len(set(lines)) == len(lines)
        assert set(lines) <= charged
        ledger.charge(TENTH, what="still works")


class TestSQLite(LedgerContract):
    @pytest.fixture
    def where(self, tmp_path):
        return tmp_path / "ledger.db"

    @pytest.fixture
    def crowded(self, where):
        """In memory where there is such a folder: many commits test the locks, not the patience of
        a slow disk.
        """
        memory = Path("/dev/shm")
        if not (memory.is_dir() and os.access(memory, os.W_OK)):
            yield where
            return
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            yield Path(folder, "ledger.db")


@pytest.mark.real
class TestPostgreSQL(LedgerContract):
    times, kills = 8, 15

    @pytest.fixture
    def where(self, postgresql):
        return postgresql

    @pytest.fixture
    def unharmed(self, fresh_database):
        return fresh_database

    @pytest.mark.parametrize(
        ("add", "drop"),
        [
            (f"CREATE RULE void AS ON UPDATE TO {HEADS.name} DO INSTEAD NOTHING", "DROP RULE void "
                                                                                  f"ON {HEADS.name}"),  # noqa: E501
            (f"CREATE INDEX extra ON {ENTRIES.name} (time)", "DROP INDEX extra"),
            (f"ALTER TABLE {ENTRIES.name} ENABLE ROW LEVEL SECURITY",
             f"ALTER TABLE {ENTRIES.name} DISABLE ROW LEVEL SECURITY"),
            ("CREATE FUNCTION void() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
             f"CREATE CONSTRAINT TRIGGER later AFTER INSERT ON {ENTRIES.name} DEFERRABLE INITIALLY "
             "DEFERRED "
             "FOR EACH ROW EXECUTE FUNCTION void()", f"DROP TRIGGER later ON {ENTRIES.name}; DROP "
                                                     "FUNCTION void()"),
            (f"ALTER TABLE {ENTRIES.name} SET UNLOGGED", f"ALTER TABLE {ENTRIES.name} SET LOGGED"),
            ("CREATE COLLATION lax (provider = icu, locale = 'und-u-ks-level2', deterministic = "
             "false);"
             f"ALTER TABLE {ENTRIES.name} ALTER COLUMN key TYPE text COLLATE lax",
             f'ALTER TABLE {ENTRIES.name} ALTER COLUMN key TYPE text COLLATE "default"; DROP '
             'COLLATION lax'),
            (f"DROP INDEX {KEYS}; CREATE INDEX {KEYS} ON {ENTRIES.name} (dataset, key, unit, "
             "neighbours) "
             "WHERE key <> ''", f"DROP INDEX {KEYS}; CREATE UNIQUE INDEX {KEYS} ON {ENTRIES.name} "
             "(dataset, key, unit, neighbours) WHERE key <> ''"),
            (f"DROP INDEX {KEYS}; CREATE UNIQUE INDEX {KEYS} ON {ENTRIES.name} (dataset, "
             "lower(key), unit, neighbours) "
             "WHERE key <> ''", f"DROP INDEX {KEYS}; CREATE UNIQUE INDEX {KEYS} ON {ENTRIES.name} "
             "(dataset, key, unit, neighbours) WHERE key <> ''"),
            (f"ALTER TABLE {ENTRIES.name} ADD CONSTRAINT late CHECK (abs(micro_epsilon) >= 0) NOT "
             "VALID",
             f"ALTER TABLE {ENTRIES.name} DROP CONSTRAINT late"),
            (f"CREATE TABLE master (dataset text PRIMARY KEY REFERENCES {HEADS.name} ON DELETE "
             "CASCADE)",
             "DROP TABLE master"),
            (f"ALTER TABLE {ENTRIES.name} ALTER COLUMN what TYPE varchar(2000)",
             f"ALTER TABLE {ENTRIES.name} ALTER COLUMN what TYPE text"),
            (f"ALTER TABLE {ENTRIES.name} ADD COLUMN double bigint GENERATED ALWAYS AS (sequence * "
             "2) STORED",
             f"ALTER TABLE {ENTRIES.name} DROP COLUMN double"),
            (f"ALTER TABLE {HEADS.name} RENAME TO true_heads; CREATE VIEW {HEADS.name} AS TABLE "
             "true_heads",
             f"DROP VIEW {HEADS.name}; ALTER TABLE true_heads RENAME TO {HEADS.name}"),
        ],
        ids=["rule", "index", "row security", "deferred trigger", "not logged", "lax keys", "keys "
                                                                                            "not "
                                                                                            "unique",
             "other keys", "check", "cascade", "type", "generated column", "view in its place"],
    )  # fmt: skip
    def test_what_hangs_on_the_tables_stops_charges_and_verify(self, granted, add, drop):
        def behind(statement):
            with granted._store._connect(write=True) as connection, connection.begin():
                connection.exec_driver_sql(statement)

        behind(add)
        try:
            with pytest.raises(LedgerTampered):
                granted.charge(TENTH, what="codes")
            with pytest.raises(LedgerTampered):
                granted.verify()
        finally:
            behind(drop)
        granted.charge(TENTH, what="codes")
        granted.verify()
