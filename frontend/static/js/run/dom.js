// Building DOM without markup strings: text from a model can only ever become text.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") node.setAttribute("class", value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
export const byId = (id) => document.getElementById(id);

export function setText(node, text) {
  if (node && node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  const text = String(value);
  if (node && node.getAttribute(name) !== text) node.setAttribute(name, text);
}

// Everything that draws goes through here: at most one call a period and none while the page is hidden.
export function throttled(draw, period) {
  let timer = 0;
  let last = 0;
  const run = () => {
    timer = 0;
    last = performance.now();
    requestAnimationFrame(draw);
  };
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && timer === -1) run();
  });
  return () => {
    if (timer) return;
    if (document.hidden) {
      timer = -1;
      return;
    }
    timer = setTimeout(run, Math.max(0, period - (performance.now() - last)));
  };
}
