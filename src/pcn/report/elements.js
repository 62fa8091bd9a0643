// The parts that the page is put together from. Whatever comes from the data goes in as text, never as HTML.

const data = JSON.parse(document.getElementById('data').textContent);
const byId = (id) => document.getElementById(id);

function element(name, className, ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function tile(label, value, { was = null, badge = null, note = '', id = null } = {}) {
  const shown = element('span', value === null ? 'value unknown' : 'value', value === null ? 'not measured' : value);
  if (id) shown.id = id;
  const head = element('span', 'head', element('span', 'label', label));
  if (badge) head.append(element('span', `badge ${badge.kind}`, badge.text));
  const lines = [head, shown];
  if (was) lines.push(element('span', 'was', was));
  if (note) lines.push(element('span', 'note', note));
  return element('div', 'tile panel', ...lines);
}

function compared(label, before, after, format, more) {
  const was = before === null ? null : `was ${format(before)}`;
  return tile(label, format(after), { was, badge: factor(before, after), ...more });
}

function bar(who, className) {
  const fill = element('div', 'fill'), much = element('span', 'much');
  const node = element('div', `bar ${className}`, element('span', 'who', who), element('div', 'track', fill), much);
  return {
    node,
    update(rank, width, text) {
      node.classList.toggle('whole', rank === null);
      fill.style.width = `${rank === null ? 100 : (100 * rank) / width}%`;
      much.textContent = text;
    },
  };
}

// Draw anew whenever the place for a drawing gets another width, so that letters keep their size.
function drawToWidth(holder, draw) {
  let drawn = 0;
  const redraw = () => {
    const width = Math.floor(holder.clientWidth);
    if (width > 0 && width !== drawn) {
      drawn = width;
      holder.replaceChildren(draw(width));
    }
  };
  new ResizeObserver(redraw).observe(holder);
  redraw();
}
