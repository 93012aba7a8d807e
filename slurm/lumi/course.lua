-- Jupyter: this word has LUMI's web interface show the module under "Jupyter for courses".
-- Put it into {{ directory }} as {{ name }}.lua
prepend_path("PATH", "{{ environment }}/bin")
setenv("_COURSE_BASE_NAME", "{{ name }}")
setenv("_COURSE_GIT_REPO", "{{ repository }}")
setenv("_COURSE_GIT_REF", "{{ reference }}")
-- Relative to the folder of the course.
setenv("_COURSE_NOTEBOOK", "{{ notebook }}")
setenv("_COURSE_NOTEBOOK_TYPE", "lab")
-- With these in the environment sbatch and srun would take the session's settings for options.
{% for variable in scrubbed.split() %}
unsetenv("{{ variable }}")
{% endfor %}
