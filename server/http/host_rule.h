#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// Whether a request may have come from where it says, so that no page in a browser reaches a server
// that its user can reach: a page's own name cannot be made to lead here, and a page of elsewhere
// may not ask.
//
// `host` must be an address, a name that nobody can own in public (localhost, a name of one part as
// containers have, or one under .localhost, .internal, .svc or .svc.cluster.local), this machine's
// own, or one that is allowed. Empty, it is none, which HTTP/1.0 allows and no browser sends.
// `origin` must be missing, the host's own, or allowed. `allowed`: origins, as
// "https://example.com", which allow their name too; names alone, as "example.com"; or "*": all.
// `scheme`: by which the server is reached. Returns what is wrong, in a sentence; empty: nothing.
std::string origin_problem(std::string_view host, std::string_view origin,
                           const std::vector<std::string>& allowed,
                           std::string_view scheme = "http");

}  // namespace recurve
