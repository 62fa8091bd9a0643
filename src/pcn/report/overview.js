// The numbers at the top, the run's history, and what stays as it is.

function showHeadline() {
  const tiles = data.headline.map((row) => {
    const format = FORMATS[row.unit];
    if (row.after === null) return tile(row.label, row.before === null ? null : format(row.before), { note: row.note });
    return compared(row.label, row.before, row.after, format, { note: row.note });
  });
  const { test, last, before, after } = data.accuracy;
  if (test !== null || last !== null) {
    const told = [[before, 'before the switch'], [after, 'right after'], [test === null ? null : last, 'at the end']];
    const parts = told.filter(([value]) => value !== null).map(([value, when]) => `${value.toFixed(2)}% ${when}`);
    const label = test === null ? 'Validation accuracy' : 'Test accuracy';
    const note = parts.length ? `${test === null ? '' : 'validation: '}${parts.join(', ')}` : '';
    tiles.push(tile(label, `${(test === null ? last : test).toFixed(2)}%`, { note }));
  }
  byId('headline').append(...tiles);
  byId('unspent').hidden = data.unspent === null;
  byId('unspent').textContent = data.unspent === null ? '' : `Of the budget, ${data.unspent}.`;
}

function showHistory() {
  const { history } = data;
  const names = Object.keys(history.dimensions);
  if (!names.length && !history.epochs.length) {
    byId('history-section').hidden = true;
    return;
  }
  const planned = new Map(data.layers.map((layer) => [layer.name, layer]));
  const lines = names.map((name, index) => {
    const layer = planned.get(name);
    const rank = layer && layer.kept ? layer.kept.rank : null;
    return { name, index, layer, rank, points: history.dimensions[name], colour: colourOf(index, names.length) };
  });
  const counted = history.rule ? `The effective dimension of a layer is the number of ${ruleInWords(history.rule)}. ` : '';
  const afterwards = history.switch && lines.some((line) => line.rank !== null) ? 'Dotted: what is kept after the switch.' : '';
  byId('history-text').textContent = history.error ? `Effective dimensions could not be measured: ${history.error}` : counted + afterwards;
  const figure = byId('history'), holder = element('div'), legend = element('div', 'legend');
  figure.append(holder, legend);
  lines.forEach((line) => legend.append(legendButton(line, figure)));
  drawToWidth(holder, (width) => historyChart(history, lines, width));
}

function legendButton(line, figure) {
  const last = line.points[line.points.length - 1][1];
  const swatch = element('i');
  swatch.style.background = line.colour;
  const inputs = line.layer ? ` of ${count(line.layer.inputs / line.layer.groups)}` : '';
  const button = element('button', '', swatch, `${line.name} `, element('small', '', `${count(last)}${inputs}`));
  button.type = 'button';
  button.setAttribute('aria-pressed', 'false');
  button.addEventListener('click', () => {
    const pressed = button.getAttribute('aria-pressed') === 'true';
    figure.querySelectorAll('.legend button').forEach((other) => other.setAttribute('aria-pressed', 'false'));
    button.setAttribute('aria-pressed', String(!pressed));
    figure.querySelectorAll('[data-line]').forEach((group) => {
      group.classList.toggle('faded', !pressed && group.dataset.line !== String(line.index));
    });
  });
  return button;
}

function showOthers() {
  const entries = Object.entries(data.left_alone).filter(([name]) => !data.layers.some((layer) => layer.name === name));
  byId('others').hidden = entries.length === 0;
  const reasons = new Map();
  entries.forEach(([name, reason]) => reasons.set(reason, [...(reasons.get(reason) || []), name || '(the model)']));
  byId('others').querySelector('summary').textContent = entries.length === 1
    ? 'One other module with parameters stays as it is'
    : `${entries.length} other modules with parameters stay as they are`;
  byId('others').querySelector('ul').append(...[...reasons].map(([reason, names]) => element('li', '', `${names.join(', ')}: ${reason}`)));
}
