(() => {
  "use strict";
  // Data of the run are texts and stay texts: they reach the page by textContent and by chart data, never as mark-up.
  const at = (id) => document.getElementById(id);
  const data = (id) => JSON.parse(at(id).textContent);
  const make = (tag, fields = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), fields);
    node.append(...children);
    return node;
  };
  const say = (text) => { at("said").textContent = text; };
  const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

  // ── order ──────────────────────────────────────────────────────────────────────────────────────────────────────
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

  const value = (text) => parseFloat(text.replace(/^[±\s]+/, ""));

  /** Places of `texts` in order; what has no value stands last both ways, equals keep their places. */
  function ordered(texts, isNumber, direction) {
    const places = [...texts.keys()];
    if (direction === "none") return places;
    const sign = direction === "ascending" ? 1 : -1;
    const keys = isNumber ? texts.map(value) : texts;
    const missing = isNumber ? Number.isNaN : (key) => key === "";
    const compare = isNumber ? (a, b) => a - b : collator.compare;
    return places.sort((a, b) => {
      const [first, second] = [keys[a], keys[b]];
      if (missing(first) || missing(second)) return missing(first) - missing(second);
      return sign * compare(first, second);
    });
  }

  /** Turns the heading's sort on; the others of its row off. */
  function turn(heading) {
    const direction = NEXT[heading.ariaSort ?? "none"];
    for (const other of heading.parentNode.cells) if (other.ariaSort) other.ariaSort = "none";
    heading.ariaSort = direction;
    say(direction === "none" ? "original order" : `sorted by ${heading.textContent}, ${direction}`);
    return direction;
  }

  const original = new WeakMap();
  function sortTable(heading) {
    const body = heading.closest("table").tBodies[0];
    if (!original.has(body)) original.set(body, [...body.rows]);
    const rows = original.get(body);
    const texts = rows.map((row) => row.cells[heading.cellIndex].textContent);
    body.append(...ordered(texts, heading.classList.contains("number"), turn(heading)).map((place) => rows[place]));
  }

  // ── all rows ───────────────────────────────────────────────────────────────────────────────────────────────────
  /** The table of all rows: sorted and filtered as data; only the rows in view are elements. */
  const WIDEST = 60;  // letters of a column; a longer text is cut, whole in its title
  function allRows() {
    const { columns, rows, cases } = data("rows-data");
    const table = at("all-rows"), body = make("tbody"), heads = make("tr");
    const haystack = rows.map((row) => row.join(" ").toLowerCase());
    const built = new Map();
    const choices = [];
    let order = [...rows.keys()], found = order, page = 0;

    function cell(text, column, place) {
      if (column.copy) return make("td", { className: "text" }, ...(text ? [copyButton(text)] : []));
      if (column.number) return make("td", { textContent: text });
      const inner = column.link && cases[place] ? make("a", { href: `#${cases[place]}` }) : make("bdi");
      inner.textContent = text;
      if (column.title === "status") inner.className = `status ${text}`;
      if (column.title === "verdict") inner.className = `verdict ${text}`;
      const long = text.length > WIDEST ? { className: "text long", title: text } : { className: "text" };
      return column.title === "backend" ? make("th", { scope: "row", ...long }, inner) : make("td", long, inner);
    }

    function row(place) {
      if (!built.has(place)) {
        built.set(place, make("tr", {}, ...columns.map((column, index) => cell(rows[place][index], column, place))));
      }
      return built.get(place);
    }

    function show() {
      const size = Number(at("size").value), pages = Math.max(1, Math.ceil(found.length / size));
      page = Math.min(page, pages - 1);
      const first = page * size, shown = found.slice(first, first + size);
      body.replaceChildren(...shown.map(row));
      const range = shown.length < found.length ? `${first + 1}–${first + shown.length} of ` : "";
      at("rows-found").textContent = range + count(found.length, "row")
        + (found.length < rows.length ? ` (${rows.length.toLocaleString("en")} without the filter)` : "");
      at("back").disabled = page === 0;
      at("on").disabled = page >= pages - 1;
    }

    function filter() {
      const words = at("find-row").value.toLowerCase().split(/\s+/).filter(Boolean);
      const wanted = choices.filter(({ list }) => list.value !== "").map(({ list, index }) => [index, list.value.slice(1)]);
      found = order.filter((place) => words.every((word) => haystack[place].includes(word))
        && wanted.every(([index, text]) => rows[place][index] === text));
      page = 0;
      show();
    }

    function sort(heading) {
      const index = heading.cellIndex;
      order = ordered(rows.map((cells) => cells[index]), Boolean(columns[index].number), turn(heading));
      filter();
    }

    /** Columns keep their widths whatever rows are shown, and the browser need not look at all cells for them. */
    function widths() {
      const letters = columns.map(({ title }, index) =>
        Math.min(WIDEST, rows.reduce((most, cells) => Math.max(most, cells[index].length), title.length + 2)));
      const lengths = letters.map((number, index) => `${columns[index].copy ? 8 : number + 2.5}ch`);
      table.style.width = `max(100%, ${lengths.join(" + ")})`;
      return make("colgroup", {}, ...lengths.map((width) => {
        const column = make("col");
        column.style.width = width;
        return column;
      }));
    }

    columns.forEach((column, index) => {
      const heading = make("th", { scope: "col", className: column.number ? "number" : "" });
      if (column.copy) heading.textContent = column.title;
      else {
        heading.ariaSort = "none";
        heading.append(make("button", { type: "button", textContent: column.title }));
        heading.firstChild.addEventListener("click", () => sort(heading));
      }
      heads.append(heading);
      if (!column.choice) return;
      const texts = [...new Set(rows.map((cells) => cells[index]))].filter(Boolean).sort(collator.compare);
      // The leading sign tells a value that is empty or odd from "all".
      const list = make("select", {}, new Option("all", ""), ...texts.map((text) => new Option(text, `=${text}`)));
      list.addEventListener("change", filter);
      choices.push({ list, index });
      at("filters").append(make("label", {}, column.title, list));
    });
    table.append(widths(), make("thead", {}, heads), body);
    at("find-row").addEventListener("input", filter);
    at("size").addEventListener("change", show);
    at("back").addEventListener("click", () => { page -= 1; show(); });
    at("on").addEventListener("click", () => { page += 1; show(); });
    at("filters").hidden = at("pages").hidden = false;
    show();
  }

  // ── copy ───────────────────────────────────────────────────────────────────────────────────────────────────────
  function copyButton(command) {
    const button = make("button", { type: "button", className: "copy", textContent: "copy" });
    button.dataset.copy = command;
    button.ariaLabel = "copy rerun command";
    return button;
  }

  async function copy(button) {
    const done = await write(button.dataset.copy);
    button.textContent = done ? "copied" : "failed";
    say(done ? "command copied" : "the browser did not let the command be copied");
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  }

  async function write(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {  // a browser that gives files no clipboard still copies a selection
      const area = make("textarea", { value: text, className: "unseen" });
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  // ── cases ──────────────────────────────────────────────────────────────────────────────────────────────────────
  function caseTools() {
    const cases = [...document.querySelectorAll("details.case")];
    const find = () => {
      const words = at("find-case").value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const one of cases) one.hidden = !words.every((word) => one.dataset.name.toLowerCase().includes(word));
      at("cases-found").textContent = count(cases.filter((one) => !one.hidden).length, "case");
    };
    const fold = (open) => () => { for (const one of cases) if (!one.hidden) one.open = open; };
    at("find-case").addEventListener("input", find);
    at("unfold").addEventListener("click", fold(true));
    at("fold").addEventListener("click", fold(false));
    at("find-case").closest(".tools").hidden = false;
    find();
  }

  // ── links ──────────────────────────────────────────────────────────────────────────────────────────────────────
  /** Shows what a fragment (`#r0c3`) names, folded away or filtered out as it may be; null where it names nothing. */
  function reveal(fragment) {
    const target = fragment.length > 1 ? at(decodeURIComponent(fragment.slice(1))) : null;
    for (let node = target; node; node = node.parentElement) {
      if (!node.matches("details")) continue;
      node.hidden = false;
      node.open = true;
    }
    return target;
  }

  /** For a fragment that comes with the page, is typed, or is gone back to. */
  function follow() {
    reveal(location.hash)?.scrollIntoView({ behavior: "instant" });
  }

  // ── tables wider than their box ────────────────────────────────────────────────────────────────────────────────
  /** Says on which sides of a box columns are out of sight: the style draws a shadow and a line of text from it. */
  function watchOverflow() {
    const look = (box) => {
      const before = box.scrollLeft > 1, after = box.scrollLeft + box.clientWidth < box.scrollWidth - 1;
      box.parentNode.dataset.more = [before ? "before" : "", after ? "after" : ""].join(" ").trim();
    };
    const sizes = new ResizeObserver((entries) => {
      for (const { target } of entries) look(target.matches(".scroll") ? target : target.parentNode);
    });
    for (const box of document.querySelectorAll(".scroll")) {
      sizes.observe(box);
      sizes.observe(box.firstElementChild);
      box.addEventListener("scroll", () => look(box), { passive: true });
    }
  }

  // ── charts ─────────────────────────────────────────────────────────────────────────────────────────────────────
  const ERRORS = 1;  // of vega's levels: that an axis cannot begin at zero is no news to a reader
  let packed, config;

  /** The Vega-Lite spec of a figure, put together from what it shares with others (packing.py). */
  function spec(place) {
    packed ??= data("figures-data");
    const [template, height, tables] = packed.figures[place];
    const datasets = {};
    for (const [name, index] of Object.entries(tables)) {
      const [names, ...rows] = packed.tables[index];
      datasets[name] = names ? rows.map((row) => Object.fromEntries(names.map((key, i) => [key, row[i]]))) : rows;
    }
    return structuredClone({ ...packed.templates[template], height, datasets });
  }

  async function draw(figure) {
    const plot = figure.querySelector(".plot");
    try {
      config ??= data("config-data");
      await window.vegaEmbed(plot, spec(figure.dataset.figure), {
        mode: "vega-lite", ast: true, renderer: "svg", actions: false, defaultStyle: false, config, logLevel: ERRORS,
        tooltip: { disableDefaultStyle: true },
      });
      plot.classList.add("drawn");
    } catch (error) {
      plot.classList.add("failed");
      console.error(`figure ${figure.dataset.figure}:`, error);
    }
  }

  function watchCharts() {
    let last = Promise.resolve();
    const seen = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        seen.unobserve(target);
        // One at a time, with room between them: the page answers while it draws.
        last = last.then(() => new Promise((next) => { setTimeout(next); })).then(() => draw(target));
      }
    }, { rootMargin: "150px" });
    for (const figure of document.querySelectorAll(".chart")) seen.observe(figure);
  }

  // ── light and dark ─────────────────────────────────────────────────────────────────────────────────────────────
  function theme() {
    const button = at("theme"), root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
    const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
    const label = () => { button.textContent = now() === "dark" ? "light page" : "dark page"; };
    const keep = (mode) => { try { localStorage.setItem("attnbench-theme", mode); } catch { /* a private window */ } };
    try { root.dataset.theme = localStorage.getItem("attnbench-theme") || ""; } catch { /* a private window */ }
    button.addEventListener("click", () => {
      root.dataset.theme = now() === "dark" ? "light" : "dark";
      keep(root.dataset.theme);
      label();
    });
    dark.addEventListener("change", label);
    button.hidden = false;
    label();
  }

  // ── the page ───────────────────────────────────────────────────────────────────────────────────────────────────
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link) reveal(link.hash);  // before the browser goes there
    const button = event.target.closest("button");
    if (!button) return;
    if (button.classList.contains("copy")) copy(button);
    else if (button.closest("table.sortable thead")) sortTable(button.closest("th"));
  });
  document.addEventListener("pointerover", (event) => {
    const button = event.target.closest?.(".copy");
    if (button) button.title = button.dataset.copy;
  });
  theme();
  caseTools();
  allRows();
  watchOverflow();
  addEventListener("hashchange", follow);
  addEventListener("DOMContentLoaded", () => { follow(); watchCharts(); });
})();
