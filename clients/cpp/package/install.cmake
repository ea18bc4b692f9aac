# `cmake --install BUILD --prefix DIR --component client`: the C++ client as a package that
# find_package(recurve) finds. clients/cpp/example uses it.
include(CMakePackageConfigHelpers)
set(client_include include/recurve-client)
set(client_cmake lib/cmake/recurve)
set_target_properties(client PROPERTIES OUTPUT_NAME recurve-client)
set_target_properties(proto PROPERTIES OUTPUT_NAME recurve-proto)
install(TARGETS client proto EXPORT recurve ARCHIVE DESTINATION lib COMPONENT client
  INCLUDES DESTINATION ${client_include})
install(EXPORT recurve FILE recurve-targets.cmake NAMESPACE recurve:: DESTINATION ${client_cmake}
  COMPONENT client)
foreach(header client call client_error connection)
  install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/cpp/${header}.h
    DESTINATION ${client_include}/clients/cpp COMPONENT client)
endforeach()
install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/cpp/package/client.h
  DESTINATION ${client_include}/recurve COMPONENT client)
install(DIRECTORY ${PROJECT_BINARY_DIR}/proto/recurve DESTINATION ${client_include}
  COMPONENT client FILES_MATCHING PATTERN "*.pb.h")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto/recurve DESTINATION share/recurve/proto
  COMPONENT client FILES_MATCHING PATTERN "*.proto")
configure_package_config_file(${CMAKE_CURRENT_SOURCE_DIR}/cpp/package/recurve-config.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/recurve-config.cmake INSTALL_DESTINATION ${client_cmake})
# The protocol may grow within a version of two parts, and nothing in it changes its meaning.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/recurve-config-version.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/recurve-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/recurve-config-version.cmake
  DESTINATION ${client_cmake} COMPONENT client)
