// Numbers as people read them.

const wholeNumber = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

function count(value) {
  if (value < 1e8) return wholeNumber.format(value);
  const [name, size] = [['T', 1e12], ['G', 1e9], ['M', 1e6]].find(([, each]) => value >= each);
  return `${(value / size).toPrecision(3)} ${name}`;
}

function scaled(value, units) {
  const [name, size] = units.find(([, each]) => value >= each) || units[units.length - 1];
  return `${Number((value / size).toPrecision(3))} ${name}`;
}

const FORMATS = {
  count,
  bytes: (value) => scaled(value, [['TB', 1e12], ['GB', 1e9], ['MB', 1e6], ['kB', 1e3], ['B', 1]]),
  seconds: (value) => scaled(value, [['h', 3600], ['min', 60], ['s', 1], ['ms', 1e-3]]),
  joules: (value) => scaled(value, [['MJ', 1e6], ['kJ', 1e3], ['J', 1]]),
};

// "8.1× less", or null where there is nothing to tell.
function factor(before, after) {
  if (!(before > 0) || !(after > 0)) return null;
  const ratio = before / after;
  if (ratio > 0.995 && ratio < 1.005) return { text: 'same', kind: 'same' };
  const size = ratio > 1 ? ratio : 1 / ratio;
  const shown = size < 1.1 ? `${((size - 1) * 100).toPrecision(2)}%` : `${size < 10 ? size.toFixed(1) : Math.round(size)}×`;
  return { text: `${shown} ${ratio > 1 ? 'less' : 'more'}`, kind: ratio < 1 ? 'more' : 'less' };
}

function percent(share, digits = 1) {
  const shown = (100 * share).toFixed(digits);
  return share < 1 && Number(shown) === 100 ? `> ${(100 - 10 ** -digits).toFixed(digits)}%` : `${shown}%`;
}

function variance(value) {
  return value >= 1e4 || value < 1e-2 ? value.toExponential(0).replace('e+', 'e') : String(Number(value.toPrecision(2)));
}

// "95%" and "variance > 0.1", as settings write rules, in words.
function ruleInWords(rule) {
  if (/^[\d.]+%$/.test(rule)) return `directions that hold ${rule} of the variance of its input`;
  if (rule.startsWith('variance > ')) return `directions of its input with a variance above ${rule.slice(11)}`;
  return `directions by ${rule}`;
}
