// The address is the permalink of the exact view: each module keeps its own parameters in it and leaves the others' alone.
export const param = (name) => new URL(location).searchParams.get(name);

// set({tab: "charts", zoom: null}): null or "" takes a parameter out. `push` makes a step for the back button.
export function setParams(values, { push = false } = {}) {
  const url = new URL(location);
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  if (url.href === location.href) return;
  history[push ? "pushState" : "replaceState"]({}, "", url);
}
