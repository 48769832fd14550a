# SPDX-License-Identifier: Apache-2.0
# Warnings, sanitizers, ccache, and the functions that every CMakeLists here uses.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(ns_options INTERFACE)
target_compile_options(ns_options INTERFACE -Wall -Wextra -Werror -Wno-unused-parameter)
target_include_directories(ns_options INTERFACE ${CMAKE_SOURCE_DIR}/server)
if(NORMSERVE_SANITIZE)
  add_compile_options(-fsanitize=${NORMSERVE_SANITIZE} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${NORMSERVE_SANITIZE})
  if(NORMSERVE_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

# ns_cold(TARGET): what never runs in a step (command lines, reports, tests) is optimised little: it is most
# of the sources, and costs half as long to compile so.
function(ns_cold name)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  # Newer versions of gcc then take what an empty std::optional does not hold for uninitialised.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-Wno-maybe-uninitialized>)
  endif()
endfunction()

# ns_library(NAME [SOURCES ...] [PUBLIC ...] [PRIVATE ...]): a static library of one folder. PUBLIC are
# the libraries whose headers its own headers include; the folder arrows of docs/architecture.md.
function(ns_library name)
  cmake_parse_arguments(A "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  target_link_libraries(${name} PUBLIC ${A_PUBLIC} PRIVATE ns_options ${A_PRIVATE})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/server)
endfunction()

# ns_test(NAME [SOURCES ...] [LIBS ...]): a GoogleTest binary; its cases are registered with ctest.
# Tests run in tests/, so that relative paths of test data are the same everywhere.
function(ns_test name)
  cmake_parse_arguments(A "" "" "SOURCES;LIBS;ENV" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  ns_cold(${name})
  target_link_libraries(${name} PRIVATE ns_options ${A_LIBS} GTest::gmock GTest::gtest GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/server)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/tests)
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 ENVIRONMENT "${A_ENV}")
endfunction()
