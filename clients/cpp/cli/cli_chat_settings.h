#pragma once
#include <string>
#include <vector>

#include "recurve/v1/inference.pb.h"

namespace recurve {

// Changes a request as the flag --NAME VALUE does. `setting`: "NAME VALUE", or the name alone of a
// flag without a value. Throws UsageError, and changes nothing then.
void apply_setting(const std::string& setting, v1::GenerateRequest* request);
// The names that apply_setting() takes.
std::vector<std::string> setting_names();
// The settings that are not the server's defaults, "NAME VALUE" on a line each.
std::string settings_text(const v1::GenerateRequest& request);

}  // namespace recurve
