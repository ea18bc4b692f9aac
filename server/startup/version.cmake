# The version that the programs print: recurve_find_version(SOURCE FALLBACK) sets RECURVE_VERSION and
# RECURVE_COMMIT as server/startup/version.h describes them, and RECURVE_GIT_LOG to the file that git appends
# to when the commit changes. By hand: cmake -DSOURCE=. -DFALLBACK=0.1.0 -P server/startup/version.cmake

# Sets `out` to what git prints about SOURCE, or to nothing if it fails.
function(recurve_git source out)
  execute_process(COMMAND git -C ${source} ${ARGN} OUTPUT_VARIABLE output ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status)
  if(NOT status STREQUAL "0")
    set(output "")
  endif()
  set(${out} "${output}" PARENT_SCOPE)
endfunction()

function(recurve_find_version source fallback)
  set(version ${fallback})
  recurve_git(${source} top rev-parse --show-toplevel)
  get_filename_component(source ${source} REALPATH)
  if(top STREQUAL source)  # else the sources are in another repository, or in none
    recurve_git(${source} commit rev-parse --short=12 HEAD)
    recurve_git(${source} described describe --tags --long --match "v[0-9]*" HEAD)
    if(described MATCHES "^v(.+)-([0-9]+)-g[0-9a-f]+$")
      set(version ${CMAKE_MATCH_1})
      if(CMAKE_MATCH_2 GREATER 0)
        string(APPEND version "+${CMAKE_MATCH_2}")
      endif()
    endif()
    recurve_git(${source} log rev-parse --git-path logs/HEAD)
    get_filename_component(log "${log}" ABSOLUTE BASE_DIR ${source})
  endif()
  set(RECURVE_VERSION ${version} PARENT_SCOPE)
  set(RECURVE_COMMIT "${commit}" PARENT_SCOPE)
  set(RECURVE_GIT_LOG "${log}" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  recurve_find_version(${SOURCE} ${FALLBACK})
  message(STATUS "${RECURVE_VERSION} (${RECURVE_COMMIT})")
endif()
