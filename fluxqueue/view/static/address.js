// The address of a view, so that it can be shared: #/queue?user=ada

/** The view that the address names, the job in it, and its parameters. */
export function address() {
  const [path, parameters] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, id] = path.split("/");
  return {view: view || "map", id, parameters: new URLSearchParams(parameters || "")};
}

/** Change parameters of the present view in the address. */
export function remember(changes) {
  const {view, id, parameters} = address();
  for (const [key, value] of Object.entries(changes))
    value ? parameters.set(key, value) : parameters.delete(key);
  const text = parameters.toString();
  history.replaceState(null, "", `${location.search}#/${view}${id ? "/" + id : ""}${text ? "?" + text : ""}`);
}
