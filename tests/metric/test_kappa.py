"""kappa against definitions written out naively, on all small graphs and on random ones."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindsight.core.errors import InvalidParameter
from blindsight.metric import (
    PairGraph,
    bounded_degree,
    kappa,
    matching,
    pair_kappa,
    spanning_forest,
)
from blindsight.metric.kappa import block_counts, bridges, worth

SMALL = [net for net in nx.graph_atlas_g() if net.number_of_edges()]


def pair_graph(net, transitive=True):
    edges = np.array([sorted(edge) for edge in net.edges()], dtype=np.int64)
    return PairGraph(net.number_of_nodes(), edges, np.ones(len(edges), dtype=bool), transitive)


def random_net(seed, n=12, m=20):
    return nx.gnm_random_graph(n, m, seed=seed)


def increase(net, s):
    """Co+ by its definition: remove the node, count components."""
    rest = net.copy()
    rest.remove_node(s)
    return nx.number_connected_components(rest) - nx.number_connected_components(net)


def slow_bound(net):
    return max(net.degree(s) - increase(net, s) for s in net if net.degree(s))


def cycle_isolating(net, s):
    """c_s by search: the fewest edges whose removal leaves s on no cycle."""
    edges = list(net.edges())
    for k in range(len(edges) + 1):
        for removed in itertools.combinations(edges, k):
            rest = net.copy()
            rest.remove_edges_from(removed)
            cut = {frozenset(bridge) for bridge in nx.bridges(rest)}
            if all(frozenset((s, t)) in cut for t in rest[s]):
                return k
    raise AssertionError


def path_sets(net, s, t):
    """All maximum sets of edge-disjoint paths, as sets of edges."""
    paths = [
        {frozenset(step) for step in itertools.pairwise(path)}
        for path in nx.all_simple_paths(net, s, t)
    ]
    value = nx.edge_connectivity(net, s, t)
    for chosen in itertools.combinations(paths, value):
        union = set().union(*chosen)
        if len(union) == sum(len(path) for path in chosen):
            yield value, union


def slow_pair_values(net, s, t):
    """Every value of |P| + min(c_s, c_t) over the maximum path sets with the fewest edges, and over
    all of them.
    """
    all_values = []
    for value, union in path_sets(net, s, t):
        rest = net.copy()
        rest.remove_edges_from([tuple(edge) for edge in union])
        all_values.append(
            (len(union), value + min(cycle_isolating(rest, s), cycle_isolating(rest, t)))
        )
    fewest = min(length for length, _ in all_values)
    return {value for length, value in all_values if length == fewest}, {
        value for _, value in all_values
    }


def test_the_bound_equals_its_definition_on_all_graphs_of_up_to_seven_nodes():
    assert len(SMALL) == 1253 - 8
    for net in SMALL:
        assert kappa(pair_graph(net), "bound") == slow_bound(net)


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_equals_its_definition_on_random_graphs(seed):
    net = nx.gnm_random_graph(200, 60 + 20 * seed, seed=seed)
    assert kappa(pair_graph(net), "bound") == slow_bound(net)


def test_blocks_and_bridges_agree_with_networkx():
    for net in [*SMALL[::7], *(nx.gnm_random_graph(80, 90, seed=seed) for seed in range(5))]:
        graph = pair_graph(net)
        blocks = list(nx.biconnected_components(net))
        assert block_counts(graph).tolist() == [
            sum(s in block for block in blocks) for s in range(len(net))
        ]
        cut = {frozenset(bridge) for bridge in nx.bridges(net)}
        assert bridges(graph).tolist() == [frozenset(edge) in cut for edge in graph.edges.tolist()]


@pytest.mark.parametrize("transitive", [True, False])
def test_the_order_edge_exact_second_bound_node_holds_on_all_small_graphs(transitive):
    for net in SMALL:
        graph = pair_graph(net, transitive)
        values = [kappa(graph, method) for method in ("exact", "second", "bound", "node")]
        assert values == sorted(values)
        assert not transitive or values[0] >= 1


def test_exact_kappa_is_the_largest_over_all_targets_on_small_graphs():
    for net in SMALL[::5]:
        graph = pair_graph(net)
        pairs = itertools.combinations(range(len(net)), 2)
        assert kappa(graph, "exact") == max(pair_kappa(graph, s, t) for s, t in pairs)


@pytest.mark.parametrize(
    "net", [net for net in SMALL if len(net) <= 5 and net.number_of_edges() <= 7]
)
def test_each_targets_value_is_that_of_a_shortest_maximum_path_set(net):
    graph = pair_graph(net)
    values = worth(graph)
    for s, t in itertools.combinations(range(len(net)), 2):
        if not nx.has_path(net, s, t):
            assert pair_kappa(graph, s, t) == min(cycle_isolating(net, s), cycle_isolating(net, t))
            continue
        shortest, every = slow_pair_values(net, s, t)
        assert pair_kappa(graph, s, t) in shortest
        # Whichever path set Equation 5 means, the bound by the smaller end holds.
        assert max(every) <= min(values[s], values[t])


@pytest.mark.parametrize("seed", range(10))
def test_the_number_of_disjoint_paths_is_the_edge_connectivity(seed):
    from blindsight.metric.kappa import disjoint_paths

    net = random_net(seed)
    graph = pair_graph(net)
    for s, t in itertools.combinations(range(len(net)), 2):
        value, used = disjoint_paths(graph, s, t)
        assert value == nx.edge_connectivity(net, s, t)
        rest = nx.Graph([tuple(edge) for edge in graph.edges[~used].tolist()])
        rest.add_nodes_from(net)
        assert not nx.has_path(rest, s, t)


def test_proposition_1_equality_condition_does_not_hold():
    """The paper: equality iff c_s = c_t. Counted over targets of small graphs, that fails often."""
    from blindsight.metric.kappa import disjoint_paths

    wrong = total = 0
    for net in SMALL[::11]:
        graph = pair_graph(net)
        values = worth(graph)
        for s, t in itertools.combinations(range(len(net)), 2):
            paths, used = disjoint_paths(graph, s, t)
            blocks, degrees = block_counts(graph, ~used), graph.subset(~used).degrees
            cycles = degrees - blocks
            wrong += (paths + min(cycles[s], cycles[t]) == values[s]) != (cycles[s] == cycles[t])
            total += 1
    assert wrong / total > 0.1


def test_known_graphs():
    star = pair_graph(nx.star_graph(9))
    complete = pair_graph(nx.complete_graph(6))
    cycle = pair_graph(nx.cycle_graph(8))
    assert [kappa(star, m) for m in ("edge", "exact", "second", "bound", "node")] == [1, 1, 1, 1, 9]
    assert [kappa(complete, m) for m in ("exact", "second", "bound", "node")] == [5, 5, 5, 5]
    assert kappa(cycle, "exact") == 2
    figure_5 = nx.Graph(["st", "sc", "ce", "cu", "et", "ut", "sa", "ab", "bs"])
    names = {name: i for i, name in enumerate("stceuab")}
    graph = pair_graph(nx.relabel_nodes(figure_5, names))
    # Two edge-disjoint paths (s, t), (s, c, ., t); then t keeps one edge on no cycle: nothing more
    # to hide.
    assert pair_kappa(graph, 0, 1) == 2


@given(st.integers(2, 40), st.integers(1, 80), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_the_bounds_of_an_intransitive_relation_are_never_dearer(n, m, seed):
    net = nx.gnm_random_graph(n, m, seed=seed)
    if net.number_of_edges():
        loose, joined = pair_graph(net, transitive=False), pair_graph(net)
        assert kappa(loose, "exact") <= kappa(loose, "second") <= kappa(joined, "second")
        assert kappa(loose, "bound") <= kappa(joined, "bound")


def test_exactly_counted_an_intransitive_relation_may_be_dearer():
    """Paths between s and t take cycles through both away with them; without transitivity they
    stay. So it is for 3 in 10,000 random graphs; this one was checked by the definitions, too.
    """
    star = [(3, 0), (3, 1), (3, 5), (3, 7), (3, 9), (4, 1), (4, 6), (4, 7), (4, 8), (4, 9)]
    net = nx.Graph([*star, (0, 7), (1, 2), (2, 8), (5, 9), (6, 8)])
    assert kappa(pair_graph(net, transitive=False), "exact") == 4
    assert kappa(pair_graph(net), "exact") == 3


def test_intransitive_kappa_equals_appendix_b_on_small_graphs():
    for net in [net for net in SMALL if len(net) <= 5]:
        worst = 0
        for s, t in itertools.combinations(net, 2):
            rest = net.copy()
            joined = net.has_edge(s, t)
            if joined:
                rest.remove_edge(s, t)
            worst = max(worst, joined + min(cycle_isolating(rest, s), cycle_isolating(rest, t)))
        assert kappa(pair_graph(net, transitive=False), "exact") == worst


@pytest.mark.parametrize("seed", range(5))
def test_forest_degree_and_matching_keep_their_promise(seed):
    graph, rng = pair_graph(nx.gnm_random_graph(100, 260, seed=seed)), np.random.default_rng(seed)
    forest = graph.subset(spanning_forest(graph, rng=rng))
    assert kappa(forest, "bound") == 1
    assert len(np.unique(forest.components())) == len(np.unique(graph.components()))
    assert graph.subset(bounded_degree(graph, 3, rng=rng)).degrees.max() <= 3
    matched = graph.subset(matching(graph, rng=rng))
    assert matched.degrees.max() == 1
    free = matched.degrees == 0
    assert not (free[graph.edges[:, 0]] & free[graph.edges[:, 1]]).any()


def test_selection_never_looks_at_labels():
    net = nx.gnm_random_graph(100, 260, seed=0)
    graph = pair_graph(net)
    other = PairGraph(graph.n_nodes, graph.edges, ~graph.similar)
    for choose in (spanning_forest, matching):
        first, second = (choose(g, rng=np.random.default_rng(3)) for g in (graph, other))
        assert (first == second).all()


def test_exact_gives_up_loudly():
    graph = pair_graph(nx.complete_graph(12))
    assert kappa(graph, "exact") == 11
    sparse = pair_graph(nx.gnm_random_graph(300, 900, seed=1))
    with pytest.raises(InvalidParameter, match="maximum flows"):
        kappa(sparse, "exact", max_flows=0)


def test_one_million_pairs_keep_the_order_of_the_bounds():
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 500_000, (1_000_000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    graph = PairGraph.from_pairs(pairs, np.zeros(len(pairs)), n_nodes=500_000)
    assert kappa(graph) <= kappa(graph, "bound") <= kappa(graph, "node")
