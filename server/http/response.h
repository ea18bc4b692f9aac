#pragma once
#include <string>
#include <string_view>

#include "server/request/refusal.h"

namespace recurve {

// A response as bytes.
struct Response {
  int status = 200;
  std::string body = {};
  std::string_view content_type = "application/json";
  bool keep_alive = true;
  std::string request_id = {};  // empty: not said
  std::string headers = {};     // further ones, each with its line's end
};
std::string response(Response of);

// A refusal as an object of JSON, with the headers by which clients decide whether to try again.
// `repeatable`: the request has changed nothing, so that it can be sent once more.
std::string refusal_response(const Refusal& refusal, bool keep_alive,
                             const std::string& request_id = "", bool repeatable = true);

// A stream of events: its head, its chunks, its end. chunked: as HTTP/1.1 has it; of HTTP/1.0 a
// stream ends as its connection does.
std::string stream_head(bool keep_alive, bool chunked, const std::string& request_id);
std::string chunk(std::string_view bytes, bool chunked);
std::string last_chunk(bool chunked);

}  // namespace recurve
