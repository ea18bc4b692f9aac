#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// Whether a request may have come from where it says, so that no page in a browser reaches a server
// on its user's machine: a page's own name cannot be made to lead here (`host` must be an address,
// localhost, or the name of an allowed origin), and a page of elsewhere may not ask (`origin` must
// be missing, the host's own, or allowed). `allowed`: origins, as "https://example.com". Returns
// what is wrong, in a sentence; empty: nothing.
std::string origin_problem(std::string_view host, std::string_view origin,
                           const std::vector<std::string>& allowed);

}  // namespace recurve
