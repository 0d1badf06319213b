// Holds one stream for all tabs: browsers open six connections to a host, streams of all tabs counted.
import { Stream } from "./stream.js";

const stream = new Stream("/portal/live");

globalThis.onconnect = ({ ports: [port] }) => {
  const listener = (message) => port.postMessage(message);
  port.onmessage = ({ data }) => {
    if (data.topics) stream.watch(listener, data.topics);
    else stream.leave(listener);
  };
};
