// Search over fields and options, "only changed", and folding. Nothing is removed: what does not match is hidden until asked for.
const words = (field) => `${field.dataset.path} ${field.dataset.path.replaceAll(/[._]/g, " ")} ${field.textContent} ${[...field.querySelectorAll("option")].map((option) => `${option.value} ${option.dataset.note ?? ""}`).join(" ")}`.toLowerCase();

export function startFind(form) {
  const box = document.getElementById("field-search");
  const told = document.getElementById("field-search-told");
  const only = document.getElementById("only-changed");
  const fold = document.getElementById("fold-all");
  const nothing = document.getElementById("nothing-found");
  const sections = [...form.querySelectorAll("[data-section]")];
  const fields = [...form.querySelectorAll(".field[data-path]")];
  const texts = new Map(fields.map((field) => [field, words(field)]));
  const headings = new Map(sections.map((section) => [section, section.querySelector("summary").textContent.toLowerCase()]));
  const folds = [...form.querySelectorAll("details.more")];
  let remembered = null;
  document.getElementById("form-tools").hidden = false;

  const matches = (field, parts) => {
    const own = texts.get(field);
    const heading = headings.get(field.closest("[data-section]"));
    return parts.every((part) => own.includes(part) || heading.includes(part));
  };
  // A title or a path that holds the words comes before a sentence that mentions them.
  const rank = (field, query) => {
    const title = field.querySelector("label, legend").textContent.toLowerCase();
    return title.includes(query) || field.dataset.path.includes(query.replaceAll(" ", "_")) ? 0 : 1;
  };

  function found() {
    return fields.filter((field) => !field.hidden);
  }

  function apply() {
    const query = box.value.trim().toLowerCase();
    const parts = query.split(/\s+/).filter(Boolean);
    const filtering = parts.length > 0 || only.checked;
    if (filtering && !remembered) remembered = new Map([...sections, ...folds].map((item) => [item, item.open]));
    for (const field of fields) field.hidden = !matches(field, parts) || (only.checked && !field.classList.contains("changed"));
    for (const block of form.querySelectorAll("fieldset.block, .fields")) block.classList.toggle("emptied", !block.querySelector(".field:not([hidden])"));
    for (const item of folds) item.hidden = !item.querySelector(".field:not([hidden])");
    for (const section of sections) section.hidden = !section.querySelector(".field:not([hidden])");
    for (const group of form.querySelectorAll("[data-group]")) group.hidden = !group.querySelector("[data-section]:not([hidden])");
    if (filtering) for (const item of [...sections, ...folds]) item.open = true;
    else if (remembered) {
      for (const [item, open] of remembered) item.open = open;
      remembered = null;
    }
    const number = found().length;
    told.textContent = filtering ? `${number} ${number === 1 ? "field" : "fields"}` + (parts.length && number ? ", Enter goes to the first" : "") : "";
    nothing.hidden = number > 0;
    nothing.textContent = only.checked && !parts.length ? "Nothing has been changed yet." : `No field or option has “${box.value.trim()}” in it. The search looks at names, explanations and choices.`;
  }

  const go = (field) => {
    field.scrollIntoView({ block: "center" });
    field.querySelector("input:not([type=hidden]), select, textarea").focus({ preventScroll: true });
  };
  box.addEventListener("input", apply);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      const query = box.value.trim().toLowerCase();
      const first = found().sort((one, other) => rank(one, query) - rank(other, query))[0];
      if (first) go(first);
    } else if (event.key === "Escape" && box.value) {
      event.preventDefault();
      event.stopPropagation();
      box.value = "";
      apply();
    }
  });
  only.addEventListener("change", apply);
  form.addEventListener("input", (event) => {
    if (only.checked && event.target.closest(".field[data-path]")) document.getElementById("changed-count").textContent = form.querySelectorAll(".field.changed").length;
  });
  fold.addEventListener("click", () => {
    const close = fold.getAttribute("aria-pressed") === "false";
    for (const section of sections) section.open = !close;
    fold.setAttribute("aria-pressed", String(close));
    fold.textContent = close ? "Open all" : "Fold all";
  });
  // From a list of problems: whatever hides the field gives way.
  return function reveal(id) {
    const target = document.getElementById(id);
    if (!target) return;
    const field = target.closest(".field[data-path]");
    if (field?.hidden) {
      box.value = "";
      only.checked = false;
      apply();
    }
    for (let item = target.closest("details"); item; item = item.parentElement.closest("details")) item.open = true;
    target.scrollIntoView({ block: "center" });
    target.focus({ preventScroll: true });
  };
}
