#pragma once
// The C++ client as an installed package has it: find_package(recurve), recurve::client.
#include "clients/cpp/client.h"
