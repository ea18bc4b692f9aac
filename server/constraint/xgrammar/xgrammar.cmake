# The target xgrammar, from sources that deploy/xgrammar.sh downloads. Without it constraints are refused by name.
set(RECURVE_GRAMMARS AUTO CACHE STRING "Structured output: AUTO (if its library can be downloaded), ON or OFF")
set_property(CACHE RECURVE_GRAMMARS PROPERTY STRINGS AUTO ON OFF)
if(RECURVE_GRAMMARS STREQUAL "OFF")
  return()
endif()

set(xgrammar_folder ${CMAKE_SOURCE_DIR}/build/xgrammar)  # shared by all presets
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/deploy/xgrammar.sh
  ${CMAKE_SOURCE_DIR}/deploy/xgrammar.txt)
execute_process(COMMAND ${CMAKE_SOURCE_DIR}/deploy/xgrammar.sh ${xgrammar_folder}
  RESULT_VARIABLE xgrammar_status ERROR_VARIABLE xgrammar_error OUTPUT_QUIET)
if(NOT xgrammar_status EQUAL 0)
  string(STRIP "${xgrammar_error}" xgrammar_error)
  if(RECURVE_GRAMMARS STREQUAL "ON")
    message(FATAL_ERROR "RECURVE_GRAMMARS=ON, but its library cannot be downloaded: ${xgrammar_error}")
  endif()
  message(WARNING "no structured output, as its library cannot be downloaded: ${xgrammar_error}")
  return()
endif()

file(GLOB xgrammar_sources ${xgrammar_folder}/cpp/*.cc ${xgrammar_folder}/cpp/converter_ext/*.cc
  ${xgrammar_folder}/cpp/support/*.cc)
# Lark's grammars are not offered: xgrammar_left_out.cc replaces their source.
list(FILTER xgrammar_sources EXCLUDE REGEX "/lark_converter\\.cc$")
# Two batches, as some sources define the same names: schemas are read once each, masks are computed for each token.
set(xgrammar_schemas ${xgrammar_sources})
list(FILTER xgrammar_schemas INCLUDE REGEX
  "/(grammar_(builder|parser|printer)|json_schema_converter|regex_converter|structural_tag)\\.cc$")
list(REMOVE_ITEM xgrammar_sources ${xgrammar_schemas})
set(among_xgrammar left_out masks place rules strings)
list(TRANSFORM among_xgrammar REPLACE "(.+)" "${CMAKE_CURRENT_LIST_DIR}/xgrammar_\\1.cc")
add_library(xgrammar_schemas OBJECT ${xgrammar_schemas})
add_library(xgrammar STATIC ${xgrammar_sources} ${among_xgrammar} $<TARGET_OBJECTS:xgrammar_schemas>)
foreach(target xgrammar xgrammar_schemas)
  set_target_properties(${target} PROPERTIES CXX_STANDARD 17 UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  target_include_directories(${target} SYSTEM PUBLIC ${xgrammar_folder}/include
    ${xgrammar_folder}/3rdparty/dlpack/include)
  target_include_directories(${target} SYSTEM PRIVATE ${xgrammar_folder}/cpp
    ${xgrammar_folder}/3rdparty/picojson)
  # Its messages go to xgrammar_library.cc instead of standard error.
  target_compile_definitions(${target} PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0
    XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
  target_compile_options(${target} PRIVATE -w -O2)
  if(RECURVE_SANITIZE MATCHES "undefined")
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)  # third-party code
  endif()
endforeach()
target_compile_options(xgrammar PRIVATE ${level_COMPUTES})
target_compile_options(xgrammar_schemas PRIVATE ${level_SERVES})
