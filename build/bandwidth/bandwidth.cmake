# The program behind `kvlaunch probe --bandwidth` for devices that only the engine's backends reach.
# Included at the end of the engine's own build (build/cmake/glue.cmake), where `ggml` stands with every backend.
add_executable(kvlaunch-bandwidth ${CMAKE_CURRENT_LIST_DIR}/bandwidth.cpp)
target_link_libraries(kvlaunch-bandwidth PRIVATE ggml)
target_compile_features(kvlaunch-bandwidth PRIVATE cxx_std_17)
