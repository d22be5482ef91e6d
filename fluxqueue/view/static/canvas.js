// A canvas that can be panned and zoomed, drawn once per frame at most. It draws what a view says.

import {html, useEffect, useRef} from "./vendor/preact-htm.js";

/** Colours of the theme, read from the style sheet. */
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {ink: read("--ink"), quiet: read("--quiet"), line: read("--line"), free: read("--free"),
          paper: read("--paper"), accent: read("--accent"), warn: read("--warn"), bad: read("--bad"), taint: read("--taint")};
}

/**
 * draw(context, view, size): draws with `view` = {x, y, k}: offset in pixels and scale.
 * hit(x, y, view, size): what is at a pixel. onHover(what, event), onClick(what, event).
 * `canZoom`: "both" or "x". `label`: what a screen reader says of it.
 */
export function Canvas({draw, hit, onHover, onClick, view, canZoom = "both", label, onView}) {
  const canvas = useRef(), current = useRef({});
  Object.assign(current.current, {draw, hit, onHover, onClick, onView});
  useEffect(() => {
    const element = canvas.current, context = element.getContext("2d");
    let frame = 0, drag = null, size = {width: 0, height: 0};
    const paint = () => {
      frame = 0;
      const began = performance.now();
      context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
      context.clearRect(0, 0, size.width, size.height);
      current.current.draw(context, view, size);
      element.dataset.frameMs = (performance.now() - began).toFixed(1);
    };
    const ask = () => { frame ||= requestAnimationFrame(paint); };
    current.current.ask = ask;
    const resize = new ResizeObserver(() => {
      const box = element.getBoundingClientRect();
      size = {width: box.width, height: box.height};
      element.width = box.width * devicePixelRatio;
      element.height = box.height * devicePixelRatio;
      ask();
    });
    resize.observe(element);
    const at = (event) => {
      const box = element.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const zoom = (x, y, factor) => {
      const k = Math.min(Math.max(view.k * factor, 0.02), 400), change = k / view.k;
      view.x = x - (x - view.x) * change;
      if (canZoom === "both") view.y = y - (y - view.y) * change;
      view.k = k;
      view.isMoved = true;
      current.current.onView?.(view);
      ask();
    };
    const wheel = (event) => {
      event.preventDefault();
      const [x, y] = at(event);
      if (canZoom === "x" && !event.ctrlKey && Math.abs(event.deltaX) < Math.abs(event.deltaY) && event.shiftKey) {
        view.y -= event.deltaY; ask(); return;
      }
      zoom(x, y, Math.exp(-event.deltaY * 0.0015));
    };
    const down = (event) => {
      drag = {from: at(event), x: view.x, y: view.y, isMoved: false};
      element.setPointerCapture(event.pointerId);
    };
    const move = (event) => {
      const [x, y] = at(event);
      if (drag) {
        const dx = x - drag.from[0], dy = y - drag.from[1];
        if (drag.isMoved || Math.hypot(dx, dy) > 4) {
          drag.isMoved = true;
          view.x = drag.x + dx; view.y = drag.y + dy; view.isMoved = true;
          current.current.onView?.(view);
          ask();
        }
        return;
      }
      current.current.onHover?.(current.current.hit(x, y, view, size), event);
    };
    const up = (event) => {
      if (drag && !drag.isMoved) current.current.onClick?.(current.current.hit(...at(event), view, size), event);
      drag = null;
    };
    const leave = (event) => current.current.onHover?.(null, event);
    const key = (event) => {
      const steps = {ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60]};
      if (event.key in steps) {
        view.x += steps[event.key][0]; view.y += steps[event.key][1]; view.isMoved = true;
        event.preventDefault(); ask();
      } else if (event.key === "+" || event.key === "-") {
        zoom(size.width / 2, size.height / 2, event.key === "+" ? 1.3 : 1 / 1.3);
      } else if (event.key === "0") {
        view.isMoved = false; ask();
      }
    };
    element.addEventListener("wheel", wheel, {passive: false});
    for (const [name, handler] of [["pointerdown", down], ["pointermove", move], ["pointerup", up],
                                   ["pointerleave", leave], ["keydown", key]])
      element.addEventListener(name, handler);
    return () => { resize.disconnect(); cancelAnimationFrame(frame); };
  }, []);
  useEffect(() => current.current.ask?.());
  return html`<canvas ref=${canvas} tabindex="0" role="img" aria-label=${label}></canvas>`;
}
