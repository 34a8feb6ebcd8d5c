// A server of Node's that says what it saw: node reflect.js PORT

const http = require('node:http');

const server = http.createServer((request, response) => {
  const all = (name) =>
    request.rawHeaders.filter((_, i, raw) => i % 2 === 1 && raw[i - 1].toLowerCase() === name)
      .join(',');
  request.resume();
  request.on('end', () => {
    const seen = [request.method, request.url, all('host'), all('content-length'),
      all('transfer-encoding')];
    response.end(`SEEN<${seen.join('|')}>`);
  });
});
server.listen(Number(process.argv[2]), '0.0.0.0');
