const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// One of several parts is shown: the metric's table, the OOD set's figures.
for (const bar of all("[data-shows]")) {
  const parts = all(bar.dataset.shows), buttons = all("button", bar);
  const show = place => {
    parts.forEach((part, i) => { part.hidden = i !== place; });
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === place));
  };
  buttons.forEach((button, i) => button.addEventListener("click", () => show(i)));
  bar.hidden = false;
  show(0);
}

const number = row => place => parseFloat(row.cells[place].firstChild.textContent);
for (const table of all("table.sortable")) {
  const headers = all("thead th", table), body = table.tBodies[0], original = [...body.rows];
  headers.forEach((header, place) => header.querySelector("button").addEventListener("click", () => {
    const next = { null: "ascending", ascending: "descending", descending: null }[header.getAttribute("aria-sort")];
    headers.forEach(other => other.removeAttribute("aria-sort"));
    if (next) header.setAttribute("aria-sort", next);
    const sign = next === "descending" ? -1 : 1;
    const text = row => row.cells[0].textContent;
    const compare = place ? (a, b) => number(a)(place) - number(b)(place) : (a, b) => text(a).localeCompare(text(b));
    body.append(...(next ? [...original].sort((a, b) => sign * compare(a, b)) : original));
    table.classList.toggle("sorted", Boolean(next));
  }));
}

const filter = document.getElementById("filter");
filter.hidden = false;
filter.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/);
  for (const row of all("table.sortable tbody tr")) {
    const text = row.cells[0].textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
});
