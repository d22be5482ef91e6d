// The shell of the page: which view the address names, the login, and the notice of errors.

import {html, render, useEffect, useState} from "./vendor/preact-htm.js";
import {post} from "./api.js";
import {address} from "./address.js";
import {start, state, subscribe} from "./state.js";
import {clock, plain} from "./words.js";
import {ClusterMap} from "./map.js";
import {QueueTable} from "./queue.js";
import {TimeChart} from "./time.js";
import {JobPage} from "./job.js";
import {People} from "./people.js";
import {TimeMachine} from "./machine.js";

const VIEWS = [
  ["map", "Cluster", ClusterMap, "c"],
  ["queue", "Queue", QueueTable, "q"],
  ["time", "Time", TimeChart, "t"],
  ["people", "Queues and people", People, "p"],
  ["machine", "Time machine", TimeMachine, "m"],
];

function Login() {
  const [token, setToken] = useState(""), [error, setError] = useState("");
  const login = async (event) => {
    event.preventDefault();
    try {
      await post("/login", {token});
      setToken("");
      await start();
      if (state.needsLogin) setError("The API server does not know this token, or it has expired.");
    } catch (refused) {
      setError(refused.message);
    }
  };
  return html`<main class="login"><h1>fluxqueue</h1>
    <form onSubmit=${login}>
      <label for="token">Token of your account</label>
      <input id="token" type="password" autocomplete="off" autofocus value=${token}
             onInput=${(event) => setToken(event.target.value)} />
      <button disabled=${!token}>Log in</button>
    </form>
    ${error && html`<p class="error" role="alert">${plain(error)}</p>`}
    <p><code>kubectl fluxqueue web</code> opens this page with your kubeconfig, without a token to
      copy. <code>kubectl create token NAME</code> makes a token for a service account.</p>
  </main>`;
}

function Shell() {
  const [, redraw] = useState(0);
  const [at, setAt] = useState(address());
  useEffect(() => subscribe(() => redraw((n) => n + 1)), []);
  useEffect(() => {
    const moved = () => setAt(address());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    const typed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
        if (event.key === "Escape") event.target.blur();
        return;
      }
      const view = VIEWS.find(([, , , key]) => key === event.key);
      if (view) location.hash = `#/${view[0]}`;
      if (event.key === "/") {
        document.querySelector("input[type=search]")?.focus();
        event.preventDefault();
      }
    };
    addEventListener("keydown", typed);
    return () => removeEventListener("keydown", typed);
  }, []);
  if (state.needsLogin) return html`<${Login} />`;
  const [, title, View] = at.view === "job" ? [0, "", JobPage]
    : VIEWS.find(([name]) => name === at.view) || VIEWS[0];
  return html`
    <header>
      <a class="brand" href="#/map">fluxqueue</a>
      <nav aria-label="Views">${VIEWS.map(([name, title, , key]) => html`
        <a href=${`#/${name}`} title=${`key ${key}`} aria-keyshortcuts=${key}
           aria-current=${name === at.view ? "page" : null}>${title}</a>`)}</nav>
      <span class="status" role="status">
        <i class=${state.isLive ? "dot live" : "dot"}></i>
        ${" "}${state.isLive ? "live" : "reconnects"}
        ${state.readAt ? html` · ${clock(state.readAt)}` : ""}
        ${state.me ? html` · ${plain(state.me.user)}` : ""}
      </span>
    </header>
    ${state.error && html`<p class="error banner" role="alert">${plain(state.error)}</p>`}
    <main class=${at.view}>${title && html`<h1 class="sr">${title}</h1>`}${state.me
      ? html`<${View} id=${at.id} key=${at.view + (at.id || "")} />`
      : html`<p class="quiet">Loading …</p>`}</main>`;
}

const app = document.getElementById("app");
app.textContent = "";
render(html`<${Shell} />`, app);
start();
