// How the page writes times, amounts and names.

const MINUTE = 60, HOUR = 3600, DAY = 86400;

/** A length of time, short: 45 s, 12 min, 3 h 20, 2 d 4 h. */
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < MINUTE) return `${s} s`;
  if (s < HOUR) return `${Math.round(s / MINUTE)} min`;
  if (s < DAY) {
    const rest = Math.floor((s % HOUR) / MINUTE);
    return rest ? `${Math.floor(s / HOUR)} h ${rest}` : `${s / HOUR | 0} h`;
  }
  const rest = Math.floor((s % DAY) / HOUR);
  return rest ? `${Math.floor(s / DAY)} d ${rest} h` : `${Math.floor(s / DAY)} d`;
}

/** A time of day, with the date if it is another day. */
export function clock(at, now = Date.now()) {
  if (!at) return "";
  const time = new Date(at), today = new Date(now);
  const hours = time.toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", hourCycle: "h23"});
  return time.toDateString() === today.toDateString()
    ? hours : `${time.toLocaleDateString([], {month: "short", day: "numeric"})} ${hours}`;
}

/** Time since, or until. */
export const since = (at, now = Date.now()) => at ? span((now - Date.parse(at)) / 1000) : "";

export function bytes(amount) {
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20]])
    if (amount >= size) return `${trim(amount / size)} ${unit}`;
  return `${amount} B`;
}

export const trim = (number) => String(Math.round(number * 10) / 10);

/** An amount of a resource, from base units. */
export function amount(resource, value) {
  if (resource === "cpu") return `${trim(value / 1000)} cpu`;
  if (resource === "memory" || resource === "ephemeral-storage") return bytes(value);
  return `${trim(value)} ${resource.replace(/^.*\//, "")}`;
}

/** Names come from users: show control and direction characters as what they are. */
export const plain = (text) => String(text ?? "").replace(
  /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
  (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

export const isGpu = (resource) => /(^|[./])gpu$/.test(resource) || /nvidia\.com\/mig/.test(resource);

// Colours of jobs: distinct hues, the same one for the same job in every view and theme.
export function colour(jobid, alpha = 1) {
  if (jobid === null || jobid === undefined) return `hsl(220 8% 58% / ${alpha})`;
  return `hsl(${(jobid * 137.508) % 360} 58% 52% / ${alpha})`;
}

/** The colour of text on the colour of a job: yellow, green and cyan are too light for white. */
export const onColour = (jobid) => {
  const hue = (jobid * 137.508) % 360;
  return hue > 35 && hue < 195 ? "#10202a" : "#fff";
};
