// The tree of levels down to nodes, for the map and for the chart of time.

/** Levels that divide the nodes: those where at least one node has a place. */
export const levelsInUse = (levels, nodes) =>
  levels.map((name, index) => ({name, index})).filter(({index}) => nodes.some((one) => one.path[index]));

/** A tree {name, kind, children | node, nodes} of the nodes below the levels in use. */
export function tree(levels, nodes) {
  const inUse = levelsInUse(levels, nodes);
  const divide = (some, depth, name, kind) => {
    if (depth === inUse.length)
      return {name, kind, nodes: some, children: some.map((node) => ({name: node.name, node, nodes: [node]}))};
    const parts = new Map();
    for (const node of some) {
      const place = node.path[inUse[depth].index] || "";
      parts.has(place) ? parts.get(place).push(node) : parts.set(place, [node]);
    }
    // A level that one place fills says nothing.
    if (parts.size === 1 && !parts.keys().next().value) return divide(some, depth + 1, name, kind);
    return {name, kind, nodes: some, children: [...parts].map(([place, inside]) =>
      divide(inside, depth + 1, place || `no ${inUse[depth].name}`, place ? inUse[depth].name : ""))};
  };
  return divide(nodes, 0, "cluster", "cluster");
}

/** Whether a place has its nodes at a time (ms): as it was, as it is, or as it is planned. */
export function holdsAt(place, at, now) {
  const from = Date.parse(place.startsAt);
  if (place.kind === "promised") return at >= from && at > now && (!place.until || at < Date.parse(place.until));
  if (at < from) return false;
  if (place.endedAt) return at < Date.parse(place.endedAt);
  return at <= now || !place.until || at < Date.parse(place.until);
}

/** By node name, the places that have something of it at a time. */
export function byNode(places, at, now) {
  const found = new Map();
  const add = (node, place, amounts) =>
    found.has(node) ? found.get(node).push([place, amounts]) : found.set(node, [[place, amounts]]);
  for (const place of places) {
    if (!holdsAt(place, at, now)) continue;
    for (const [node, amounts] of Object.entries(place.nodes)) add(node, place, amounts);
    for (const node of place.held) if (!(node in place.nodes)) add(node, place, null);
  }
  return found;
}
