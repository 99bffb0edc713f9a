"use strict";
// Draws the document. All text goes in as text, never as markup. Drawing again, with a newer document, keeps the place.
const MOST_ROWS = 40, FIRST_ROWS = 25; // of a table: all of them, or the first ones until more are asked for
const NARROW = 560, PRINTED = 690; // pixels: a telephone; a sheet of paper between its margins
const wanted = {}; // what the reader chose: by figure the shown view, by table its order and search
const $ = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
let shown, resized, printing = false;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function theme() {
  const night = dark.matches && !printing;
  const ink = night ? "#e8eaed" : "#1d2125", grid = night ? "#343a42" : "#e4e7ea", paper = night ? "#20252b" : "#ffffff";
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid };
  return { layout: {
    font: { color: ink, family: "system-ui, Segoe UI, Roboto, Noto Sans, sans-serif", size: 13 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
    colorway: night ? ["#c3cad2", "#8d98a5", "#5b6672"] : ["#4a535d", "#87929d", "#bcc3ca"],
    margin: { l: 64, r: 40, t: 40, b: 50 }, xaxis: axis, yaxis: axis,
    hoverlabel: { bgcolor: paper, bordercolor: "#888", font: { color: ink }, align: "left", namelength: -1 },
  } };
}

// On a telephone names give way to the picture; pointing still tells them.
function slim(figure, layout, width) {
  const bare = (axis) => ({ ...axis, title: undefined, showticklabels: false }), { xaxis, yaxis } = layout;
  const margin = { ...layout.margin, l: 52, r: 12 };
  if (!figure.square) return { margin, ...((xaxis.tickvals || []).length > 10 && { xaxis: bare(xaxis) }) };
  return { margin, height: width, ...(xaxis.type === "category" && { xaxis: bare(xaxis), yaxis: bare(yaxis) }) };
}

function draw(figure) {
  const place = $(figure.id), choice = figure.choices && figure.choices.of[wanted[figure.id] || 0];
  const look = theme();
  const data = figure.data.map((trace, i) => ({
    ...trace, ...(choice && { visible: choice.visible[i] }),
    ...(trace.line && { line: { ...trace.line, color: trace.line.color === "ink" ? look.layout.font.color : trace.line.color } }),
  }));
  const layout = { ...figure.layout, ...(choice && choice.layout), template: look, uirevision: figure.id };
  const width = printing ? PRINTED : place.clientWidth;
  layout.width = width;
  if (width < NARROW) Object.assign(layout, slim(figure, layout, width));
  return Plotly.react(place, data, structuredClone(layout), { displaylogo: false });
}

function figureOf(figure) {
  const frame = element("figure");
  if (figure.choices) {
    const options = figure.choices.of.map((one, i) => element("option", { value: i }, one.label));
    const select = element("select", { id: figure.id + "-choice" }, ...options);
    select.value = wanted[figure.id] || 0;
    select.onchange = () => { wanted[figure.id] = Number(select.value); draw(figure); };
    frame.append(element("p", { class: "choice" }, element("label", { for: select.id }, figure.choices.label + " "), select));
  }
  frame.append(element("div", { id: figure.id, class: figure.square ? "plot square" : "plot", role: "img", "aria-label": figure.label, tabindex: 0 }));
  return frame;
}

const key = (cell) => cell && typeof cell === "object" ? cell.sort : cell;

function cellOf(cell, column, palette) {
  const text = column.digits === undefined && !column.cluster;
  const value = key(cell);
  const made = element("td", { class: (text ? "text" : "") + (cell && cell.strong ? " strong" : ""), "data-label": column.name });
  if (value === null || value === undefined) made.append(cell && cell.text || "–");
  else if (column.cluster) {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = palette[value % palette.length];
    made.append(swatch, String(value));
  } else if (cell.text !== undefined) made.append(cell.text);
  else if (typeof value === "number") made.append(value.toFixed(column.digits));
  else made.append(element("bdi", {}, value));
  return made;
}

function fill(table, palette) {
  const chosen = wanted[table.id] || (wanted[table.id] = { search: "", all: false });
  const body = $(table.id).tBodies[0], asked = chosen.search.trim().toLowerCase();
  let rows = table.rows;
  // A number finds the client of that number; anything else is looked for in all text.
  if (/^\d+$/.test(asked)) rows = rows.filter((row) => String(key(row[0])) === asked || row.some((c) => typeof c === "string" && c.toLowerCase().includes(asked)));
  else if (asked) rows = rows.filter((row) => row.some((c) => typeof c === "string" && c.toLowerCase().includes(asked)));
  if (chosen.by !== undefined) {
    const sign = chosen.down ? -1 : 1;
    rows = [...rows].sort((one, other) => {
      const a = key(one[chosen.by]), b = key(other[chosen.by]);
      if (a === null || b === null) return (a === null) - (b === null); // the unknown last, either way
      return sign * (typeof a === "string" ? a.localeCompare(b) : a - b);
    });
  }
  const visible = chosen.all || rows.length <= MOST_ROWS ? rows : rows.slice(0, FIRST_ROWS);
  body.replaceChildren(...visible.map((row) => element("tr", {}, ...row.map((cell, i) => cellOf(cell, table.columns[i], palette)))));
  [...$(table.id).tHead.rows[0].cells].forEach((head, i) => {
    if (i === chosen.by) head.setAttribute("aria-sort", chosen.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
  const more = $(table.id + "-more");
  more.hidden = visible.length === rows.length;
  more.textContent = `${visible.length} of ${rows.length} rows are shown: show all`;
  more.onclick = () => { chosen.all = true; fill(table, palette); };
  const count = $(table.id + "-count");
  if (count) count.textContent = asked ? ` ${rows.length} of ${table.rows.length}` : "";
}

function tableOf(table, palette) {
  const chosen = wanted[table.id] || (wanted[table.id] = { search: "", all: false });
  const heads = table.columns.map((column, i) => {
    const button = element("button", { type: "button" }, column.name);
    button.onclick = () => {
      const again = chosen.by === i;
      chosen.down = again && !chosen.down;
      chosen.by = i;
      fill(table, palette);
    };
    return element("th", { scope: "col", class: column.digits === undefined && !column.cluster ? "text" : "" }, button);
  });
  const parts = [];
  if (table.search) {
    const input = element("input", { id: table.id + "-search", type: "search" });
    input.value = chosen.search;
    input.oninput = () => { chosen.search = input.value; fill(table, palette); };
    parts.push(element("p", { class: "search" }, element("label", { for: input.id }, table.search + " "), input,
      element("span", { id: table.id + "-count", role: "status" })));
  }
  const grid = element("table", { id: table.id, "aria-label": table.label, class: table.cards ? "cards" : "" },
    element("thead", {}, element("tr", {}, ...heads)), element("tbody"));
  parts.push(element("div", { class: "scroll", tabindex: 0 }, grid));
  parts.push(element("button", { id: table.id + "-more", class: "more", type: "button" }));
  return parts;
}

function sectionOf(part, palette) {
  const made = element("section", { id: part.id }, element(part.below ? "h3" : "h2", {}, part.title), element("p", {}, part.text));
  made.append(...(part.figures || []).map(figureOf));
  if (part.table) made.append(...tableOf(part.table, palette));
  if (part.command) made.append(element("pre", { tabindex: 0 }, part.command));
  if (part.code) made.append(element("pre", { tabindex: 0 }, part.code));
  if (part.details) made.append(element("details", {}, element("summary", {}, part.details.title), element("pre", { tabindex: 0 }, part.details.code)));
  return made;
}

function render(news) {
  shown = news;
  document.title = news.title;
  document.querySelector("h1").replaceChildren(element("bdi", {}, news.headline));
  document.querySelector("header").dataset.level = news.level || "plain";
  $("next").replaceChildren(...(news.next ? [element("b", {}, "Next: "), element("bdi", {}, news.next)] : []));
  $("subtitle").replaceChildren(element("bdi", {}, news.title), " · ", element("bdi", {}, news.subtitle));
  $("tiles").replaceChildren(...news.tiles.map((tile) =>
    element("div", {}, element("dt", {}, tile.label), element("dd", {}, tile.value), element("dd", {}, tile.note))));
  const ids = news.sections.map((part) => part.id).join();
  if ($("content").dataset.ids !== ids) { // a section came or went: lay the page out anew
    for (const old of document.querySelectorAll("main > section")) old.remove();
    $("content").append(...news.sections.map((part) => sectionOf(part, news.palette)));
    document.querySelector("nav").replaceChildren(...news.sections.filter((part) => !part.below).map((part) =>
      element("a", { href: "#" + part.id }, part.title)));
    $("content").dataset.ids = ids;
  }
  for (const part of news.sections) if (part.table) fill(part.table, news.palette);
  return redraw();
}

const redraw = () => Promise.all(shown.sections.flatMap((part) => (part.figures || []).map(draw)));

async function ask(path) {
  const answer = await fetch(path);
  return answer.ok ? answer.json() : null; // not ok: a file is being replaced, so ask again
}

async function follow() {
  for (let seen, over = false; !over; await new Promise((done) => setTimeout(done, 500))) {
    let state, news;
    try {
      state = await ask("state.json");
      news = state && state.stamp !== seen && await ask("document.json?" + encodeURIComponent(state.stamp));
    } catch (error) {
      $("state").textContent = "feddag watch has ended; this is what it showed last";
      return;
    }
    if (news) {
      await render(news);
      ({ stamp: seen, over } = state);
      $("state").textContent = state.text;
    }
  }
}

dark.addEventListener("change", redraw);
addEventListener("resize", () => { cancelAnimationFrame(resized); resized = requestAnimationFrame(redraw); });
addEventListener("beforeprint", () => { printing = true; redraw(); });
addEventListener("afterprint", () => { printing = false; redraw(); });
render(JSON.parse($("document").textContent)).then(() => { document.body.dataset.drawn = "yes"; });
if ("live" in document.body.dataset) follow();
