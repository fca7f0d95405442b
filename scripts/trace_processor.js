// Perfetto's trace processor (WebAssembly) outside a browser: node trace_processor.js WEB_DIST TRACE SQL...
// WEB_DIST is the folder of Perfetto's user interface that holds engine_bundle.js and trace_processor.wasm.
// Prints one JSON array: per query an array of rows.
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [dist, trace, ...queries] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3; // TraceProcessorRpc.TraceProcessorMethod

// The engine is a web worker: it takes a message port, and reads its module by a synchronous request.
class FileRequest {
  open(_method, url) { this.url = url; }
  send() {
    const bytes = fs.readFileSync(path.join(dist, path.basename(this.url)));
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
}
const worker = {
  WebAssembly, TextDecoder, TextEncoder, URL, Uint8Array, ArrayBuffer, performance, setTimeout, clearTimeout,
  TypeError, RangeError, crypto: globalThis.crypto, XMLHttpRequest: FileRequest, WorkerGlobalScope: Object,
  location: {href: 'file:///engine_bundle.js'}, navigator: {hardwareConcurrency: 1},
  fetch: async (url) => new Response(fs.readFileSync(path.join(dist, path.basename(String(url)))),
    {headers: {'Content-Type': 'application/wasm'}}),
  console: {log() {}, warn() {}, error() {}, info() {}},
};
worker.self = worker;

// -- protobuf, as far as the protocol needs it --------------------------------------------------
const varint = (value) => {
  const out = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    if (rest < 128n) return Buffer.from([...out, Number(rest)]);
    out.push(Number(rest & 127n) | 128);
  }
};
const bytesField = (number, data) => Buffer.concat([varint(number * 8 + 2), varint(data.length), data]);
const intField = (number, value) => Buffer.concat([varint(number * 8), varint(value)]);
function readVarint(buffer, at) {
  let value = 0n, shift = 0n;
  for (;;) {
    const byte = buffer[at++];
    value |= BigInt(byte & 127) << shift;
    shift += 7n;
    if (byte < 128) return [value, at];
  }
}
function* fields(buffer) {
  for (let at = 0; at < buffer.length;) {
    let key, value;
    [key, at] = readVarint(buffer, at);
    const wire = Number(key & 7n);
    if (wire === 0) [value, at] = readVarint(buffer, at);
    else if (wire === 1) { value = buffer.subarray(at, at + 8); at += 8; }
    else {
      [value, at] = readVarint(buffer, at);
      const end = at + Number(value);
      value = buffer.subarray(at, end);
      at = end;
    }
    yield [Number(key >> 3n), value];
  }
}

const results = queries.map(() => ({columns: [], cells: []}));
const fail = (text) => { process.stderr.write(text + '\n'); process.exit(1); };

function readBatch(batch, cells) {
  const kinds = [], ints = [], floats = [];
  let strings = '';
  for (const [number, value] of fields(batch)) {
    if (number === 1) for (let at = 0; at < value.length;) { let kind; [kind, at] = readVarint(value, at); kinds.push(Number(kind)); }
    else if (number === 2) for (let at = 0; at < value.length;) { let int; [int, at] = readVarint(value, at); ints.push(Number(BigInt.asIntN(64, int))); }
    else if (number === 3) for (let at = 0; at < value.length; at += 8) floats.push(Buffer.from(value.subarray(at, at + 8)).readDoubleLE(0));
    else if (number === 5) strings = Buffer.from(value).toString();
  }
  const texts = strings.split('\0');
  for (const kind of kinds) {
    cells.push(kind === 2 ? ints.shift() : kind === 3 ? floats.shift() : kind === 4 ? texts.shift() : null);
  }
}

let answered = 0;
function reply(message) {
  for (const [, rpc] of fields(Buffer.from(message))) {
    let kind = 0, query = null;
    for (const [number, value] of fields(rpc)) {
      if (number === 3) kind = Number(value);
      if (number === 5) fail(Buffer.from(value).toString());
      if (number === 201) for (const [field, text] of fields(value)) if (field === 2) fail(Buffer.from(text).toString());
      if (number === 203) query = value;
    }
    if (kind !== QUERY || query === null) continue;
    const result = results[answered];
    for (const [number, value] of fields(query)) {
      if (number === 1) result.columns.push(Buffer.from(value).toString());
      if (number === 2 && value.length) fail(Buffer.from(value).toString());
      if (number === 3) {
        readBatch(value, result.cells);
        for (const [field, last] of fields(value)) if (field === 6 && last) answered++;
      }
    }
  }
}

const port = {postMessage: (message) => reply(message)};
vm.runInContext(fs.readFileSync(path.join(dist, 'engine_bundle.js'), 'utf8'), vm.createContext(worker));
worker.onmessage({data: port});

let sequence = 0;
const send = (method, ...body) => {
  const rpc = Buffer.concat([intField(1, sequence++), intField(2, method), ...body]);
  port.onmessage({data: new Uint8Array(bytesField(1, rpc))});
};
setTimeout(() => {
  const data = fs.readFileSync(trace);
  for (let at = 0; at < data.length; at += 1 << 20) send(APPEND, bytesField(101, data.subarray(at, at + (1 << 20))));
  send(FINALIZE);
  for (const sql of queries) send(QUERY, bytesField(103, bytesField(1, Buffer.from(sql))));
  const rows = results.map(({columns, cells}) => {
    const found = [];
    for (let at = 0; at < cells.length; at += columns.length) found.push(cells.slice(at, at + columns.length));
    return found;
  });
  process.stdout.write(JSON.stringify(rows) + '\n');
}, 500);
