// How numbers and times are written. No data is "no data yet" or a dash, never 0.
export const NONE = "–";

const number = (value) => {
  if (value === null || value === undefined || value === "") return null;
  const result = Number(value);
  return Number.isFinite(result) ? result : null;
};

export function fixed(value, digits = 2) {
  const n = number(value);
  return n === null ? NONE : n.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function count(value) {
  const n = number(value);
  return n === null ? NONE : Math.round(n).toLocaleString("en");
}

export function short(value) {
  const n = number(value);
  if (n === null) return NONE;
  const size = Math.abs(n);
  if (size !== 0 && size < 0.001) return n.toExponential(1);
  if (size >= 10000) return n.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
  if (size >= 100) return fixed(n, 0);
  return n.toLocaleString("en", { maximumSignificantDigits: 3 });
}

export function rate(value, unit) {
  return number(value) === null ? NONE : `${short(value)} ${unit}`;
}

export function seconds(value) {
  const n = number(value);
  if (n === null) return NONE;
  if (n === 0) return "0 ms";
  if (n < 0.9995) return n < 0.00095 ? `${fixed(n * 1000, 2)} ms` : `${fixed(n * 1000, n < 0.01 ? 1 : 0)} ms`;
  if (n < 60) return `${fixed(n, 1)} s`;
  return duration(n);
}

export function duration(value) {
  const n = number(value);
  if (n === null) return NONE;
  const total = Math.max(0, Math.floor(n));
  const [h, m, s] = [Math.floor(total / 3600), Math.floor((total % 3600) / 60), total % 60];
  if (h >= 24) return `${Math.floor(h / 24)} d ${h % 24} h`;
  if (h) return `${h} h ${String(m).padStart(2, "0")} min`;
  return m ? `${m} min ${String(s).padStart(2, "0")} s` : `${s} s`;
}

export function bytes(value) {
  const n = number(value);
  if (n === null) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  let rest = n;
  while (rest >= 1000 && index < units.length - 1) {
    rest /= 1000;
    index += 1;
  }
  return `${index === 0 ? rest : fixed(rest, rest < 10 ? 1 : 0)} ${units[index]}`;
}

export function percent(value, digits = 0) {
  const n = number(value);
  return n === null ? NONE : `${fixed(n * 100, digits)} %`;
}

export function when(date) {
  return date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

export function clock(unix) {
  const n = number(unix);
  return n === null ? NONE : new Date(n * 1000).toLocaleTimeString("en-GB");
}

export function ago(date) {
  const passed = (Date.now() - date.getTime()) / 1000;
  if (!Number.isFinite(passed)) return NONE;
  if (passed < 5) return "just now";
  if (passed < 60) return `${Math.floor(passed)} s ago`;
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86400) return `${Math.floor(passed / 3600)} h ago`;
  return date.toLocaleDateString(undefined, { dateStyle: "medium" });
}

// A time that lies ahead. One that has passed is due: estimates are not exact.
export function ahead(date) {
  const left = (date.getTime() - Date.now()) / 1000;
  if (!Number.isFinite(left)) return NONE;
  if (left < 5) return "any moment";
  if (left < 60) return `in ${Math.ceil(left)} s`;
  if (left < 3600) return `in ${Math.round(left / 60)} min`;
  if (left < 86400) return `in ${Math.round(left / 360) / 10} h`;
  return when(date);
}

// Numbers arrive as numbers or as "NaN", "Infinity", "-Infinity"; charts draw non-finite ones as gaps.
export function decode(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

// Plotly reads markup and entities in names: what people wrote is turned into entities first.
export const inert = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
