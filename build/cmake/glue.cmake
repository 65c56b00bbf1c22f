# What we change in the engine's own build, from outside its tree: run as CMAKE_PROJECT_llama.cpp_INCLUDE.
# Only compile time is bought here: the code that computes (ggml, src/) keeps upstream's flags untouched.
#
# Measured on 2 cores: server, rpc-server and fit-params cold, 245 s without this file, 141 s with it.

if (PROJECT_NAME STREQUAL "llama.cpp")
    # the targets exist only at the end of the top directory
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL kvlaunch_glue)
endif()

function(kvlaunch_glue)
    if (TARGET ggml)
        if (TARGET ggml)
        include("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../bandwidth/bandwidth.cmake")
    endif()
    endif()

    # Templates over JSON and HTTP: nothing here runs once per token and weight, so -O1 costs no throughput.
    foreach (target llama-common server-context llama-server-impl mtmd cpp-httplib)
        if (TARGET ${target})
            target_compile_options(${target} PRIVATE -O1)
        endif()
    endforeach()

    # Batch 8: with 24 llama-common defines a name twice. mtmd and ggml-cpu can't be joined at all.
    # A joined file is slow to rebuild after an edit: KVLAUNCH_UNITY is off in a developer's tree.
    if (KVLAUNCH_UNITY)
        foreach (target llama-common server-context llama-server-impl)
            if (TARGET ${target})
                set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
            endif()
        endforeach()
    endif()

    if (TARGET mtmd)
        # Every vision model's file begins with the same 40,000 lines. The others must not see them: mtmd-helper
        # refuses to compile when an internal header is there already.
        target_precompile_headers(mtmd PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${CMAKE_SOURCE_DIR}/tools/mtmd/models/models.h>")
        get_target_property(sources mtmd SOURCES)
        list(FILTER sources EXCLUDE REGEX "models/")
        list(TRANSFORM sources PREPEND "${CMAKE_SOURCE_DIR}/tools/mtmd/")
        set_source_files_properties(${sources} TARGET_DIRECTORY mtmd PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
        # ccache takes no file that uses a precompiled header unless it is told to, for this target alone
        if (KVLAUNCH_CCACHE)
            target_compile_options(mtmd PRIVATE -fpch-preprocess)
            set_target_properties(mtmd PROPERTIES CXX_COMPILER_LAUNCHER
                "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${KVLAUNCH_CCACHE}")
        endif()
    endif()
endfunction()
