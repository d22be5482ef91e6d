// All requests of the page: lists page by page, one job, and actions.

import {ask} from "./server.js";

const query = (parameters) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "");
  return given.length ? "?" + new URLSearchParams(given) : "";
};

export const get = (path, parameters = {}) => ask("/api/v1" + path + query(parameters));

export const post = (path, body = {}) => ask(path.startsWith("/log") ? path : "/api/v1" + path, {
  method: "POST", body: JSON.stringify(body), headers: {"Content-Type": "application/json"},
});

/** All items of a list, up to `most` of them. */
export async function list(path, parameters = {}, most = 5000) {
  const items = [];
  let next;
  do {
    const page = await get(path, {...parameters, limit: 500, continue: next});
    items.push(...page.items);
    next = page.continue;
  } while (next && items.length < most);
  return items;
}
