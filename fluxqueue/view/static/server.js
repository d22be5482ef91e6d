// The view server: one request, and the stream of changes. Pictures and tests replace this file.

const ACTING = {"X-Fluxqueue-Window": "1"};

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, {credentials: "same-origin", ...options,
                                  headers: {...ACTING, ...(options.headers || {})}});
  } catch {
    throw new Refused(0, "The server does not answer. This page tries again.");
  }
  if (response.status === 204) return null;
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, body.detail || response.statusText);
  return body;
}

/** Call `onChange` after every change of a job. Returns a function that ends it. */
export function follow(onChange, onState) {
  const source = new EventSource("/api/v1/changes");
  source.addEventListener("change", (event) => onChange(JSON.parse(event.data)));
  source.addEventListener("reset", () => onChange(null));
  source.onopen = () => { onState(true); onChange(null); };
  source.onerror = () => onState(false);
  return () => source.close();
}
